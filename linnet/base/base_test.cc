#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <sstream>
#include <thread>

#include "linnet/base/aligned.h"
#include "linnet/base/hash.h"
#include "linnet/base/progress.h"
#include "linnet/base/thread_pool.h"
#include "linnet/base/units.h"
#include "linnet/base/utf8.h"
#include "linnet/error.h"
#include "linnet/rng.h"

namespace linnet {
namespace {

TEST(Error, IsCaughtByItsType) {
  EXPECT_THROW(throw InputError("a ", 1), InputError);
  EXPECT_THROW(throw RuntimeError("b"), RuntimeError);
  EXPECT_THROW(throw InputError("c"), Error);
  EXPECT_STREQ(InputError("row ", 3, " of ", 2.5).what(), "row 3 of 2.5");
}

TEST(AlignedBuffer, IsAlignedZeroedAndCopiesByName) {
  AlignedBuffer<float> a(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % kCacheLine, 0u);
  EXPECT_TRUE(std::all_of(a.begin(), a.end(), [](float x) { return x == 0; }));
  a[7] = 3;
  AlignedBuffer<float> b = a.Copy();
  a[7] = 4;
  EXPECT_EQ(b[7], 3);
  AlignedBuffer<float> c = std::move(a);
  EXPECT_EQ(c[7], 4);
  EXPECT_EQ(a.size(), 0u);  // NOLINT: the moved-from state is specified
}

// Hash values must not change: they are part of model fingerprints, and a change would invalidate
// all saved states and prompt snapshots. The expected values come from an independent
// implementation of the definition.
TEST(Hash, ValuesAreFixed) {
  std::string text;
  for (char c = 0; c < 71; ++c) text += c;
  const auto hash = [](const std::string& of, uint64_t seed) {
    return HashDigits(Hash(std::as_bytes(std::span(of)), seed));
  };
  EXPECT_EQ(hash("", 0), "2dd7ac68ea05a9a1");
  EXPECT_EQ(hash(text, 0), "070b79b66c3a265d");
  EXPECT_EQ(hash("abc", Hash(std::as_bytes(std::span(text)))), "a64c3052427b18f6");
}

// Test vectors published with the Random123 library (file kat_vectors, entry philox4x32 10).
TEST(Philox, MatchesThePublishedVectors) {
  Philox zero(0, 0, 0);
  EXPECT_EQ(zero.Next(), 0x6627e8d5u);
  EXPECT_EQ(zero.Next(), 0xe169c58du);
  EXPECT_EQ(zero.Next(), 0xbc57ac4cu);
  EXPECT_EQ(zero.Next(), 0x9b00dbd8u);
  Philox ones(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones.Next(), 0x408f276du);
  EXPECT_EQ(ones.Next(), 0x41c83b0eu);
  EXPECT_EQ(ones.Next(), 0xa20bc7c6u);
  EXPECT_EQ(ones.Next(), 0x6d5451fdu);
}

TEST(Philox, UniformIsInTheOpenIntervalAndUniform) {
  Philox rng(3, 5);
  double sum = 0;
  for (int i = 0; i < 100000; ++i) {
    const float u = rng.Uniform();
    ASSERT_GT(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    sum += u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

TEST(Philox, BelowCoversItsRangeAndPermutationIsOne) {
  Philox rng(9);
  std::set<uint32_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(rng.Below(7));
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(*seen.rbegin(), 6u);
  std::vector<uint32_t> order = RandomPermutation(1000, Philox(1, 2));
  EXPECT_EQ(order, RandomPermutation(1000, Philox(1, 2)));
  EXPECT_NE(order, RandomPermutation(1000, Philox(1, 3)));
  EXPECT_EQ(std::set<uint32_t>(order.begin(), order.end()).size(), 1000u);
}

TEST(ThreadPool, RunsEveryWorkerAndBarriersHold) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::vector<int> phase(static_cast<size_t>(threads), 0);
    std::atomic<int> wrong{0};
    for (int round = 0; round < 200; ++round) {
      pool.Run([&](int worker) {
        for (int step = 0; step < 3; ++step) {
          phase[static_cast<size_t>(worker)] = round * 3 + step;
          pool.Barrier();
          for (int other : phase) wrong += other != round * 3 + step;
          pool.Barrier();
        }
      });
    }
    EXPECT_EQ(wrong, 0);
  }
}

TEST(ThreadPool, ForCoversEachIndexOnce) {
  ThreadPool pool(3);
  for (size_t count : {0, 1, 2, 3, 7, 100}) {
    std::vector<std::atomic<int>> hits(count);
    pool.For(count, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) ++hits[i];
    });
    for (auto& hit : hits) EXPECT_EQ(hit, 1);
  }
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(2);
  for (int thrower : {0, 1}) {
    EXPECT_THROW(pool.Run([&](int worker) {
      if (worker == thrower) throw InputError("from a worker");
    }),
                 Error);
  }
  std::atomic<int> ran{0};
  pool.Run([&](int) { ++ran; });
  EXPECT_EQ(ran, 2);
}

// Workers that sleep must wake. They sleep after idling for 5 ms, which is longer than they spin.
TEST(ThreadPool, WakesAfterIdling) {
  ThreadPool pool(2);
  std::atomic<int> ran{0};
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.Run([&](int) { ++ran; });
  }
  EXPECT_EQ(ran, 6);
}

TEST(Units, Format) {
  EXPECT_EQ(FormatSeconds(0.84), "0.8s");
  EXPECT_EQ(FormatSeconds(42), "42s");
  EXPECT_EQ(FormatSeconds(200), "3m20s");
  EXPECT_EQ(FormatSeconds(3725), "1h02m");
  EXPECT_EQ(FormatSeconds(2 * 86400 + 3 * 3600), "2d03h");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(12345), "12.3k");
  EXPECT_EQ(FormatCount(1234567), "1.23M");
  EXPECT_EQ(FormatBytes(262144), "262 kB");
}

TEST(Units, ParseSeconds) {
  EXPECT_EQ(ParseSeconds("90"), 90);
  EXPECT_EQ(ParseSeconds("15m"), 900);
  EXPECT_EQ(ParseSeconds("1.5h"), 5400);
  EXPECT_EQ(ParseSeconds("0"), 0);
  for (const char* bad : {"", "h", "2 h", " 2h", "-3", "+3", "1y", "nan", "1e3", "1e3s", "0x10",
                          ".5h", ".", "5.", "5.h", "1.5.2h"})
    EXPECT_THROW(ParseSeconds(bad), Error) << bad;
  EXPECT_THROW(ParseSeconds(std::string(400, '9')), Error);
}

TEST(ProgressLine, OverwritesOnATerminalOnly) {
  std::ostringstream terminal, log;
  {
    ProgressLine a(terminal, true), b(log, false);
    a.Update("long line");
    a.Finish("end");
    b.Update("one");
    b.Update("two");  // too soon to show
    b.Finish("end");
  }
  EXPECT_EQ(terminal.str(), "\rlong line\r         \rend\n");
  EXPECT_EQ(log.str(), "one\nend\n");
}

TEST(Utf8, RoundTrip) {
  for (const char32_t c : {0x0u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xe000u, 0xffffu, 0x10000u,
                           0x6d77u, 0x10ffffu}) {
    std::string text;
    AppendUtf8(c, text);
    const auto next = NextCodePoint(text, 0);
    ASSERT_TRUE(next.has_value()) << static_cast<uint32_t>(c);
    EXPECT_EQ(next->value, c);
    EXPECT_EQ(next->bytes, text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      EXPECT_FALSE(NextCodePoint(std::string_view(text).substr(0, cut), 0)) << cut;
      EXPECT_FALSE(NextCodePoint(text, cut)) << cut;
    }
  }
  // Overlong forms, surrogates, values above U+10FFFF, bytes that begin no sequence, and an
  // incomplete sequence.
  for (const char* bad :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\x80", "\xe6\xb5"}) {
    EXPECT_FALSE(NextCodePoint(bad, 0)) << Printable(bad);
  }
}

TEST(Utf8, CodePointsOfAnyBytes) {
  EXPECT_EQ(CodePoints("a海\xc3\xa9"), U"a\u6d77\u00e9");
  EXPECT_EQ(CodePoints("\xe6\xb5z\xff"), U"\ufffd\ufffdz\ufffd");
}

TEST(Utf8, ReplacesUnprintableCharacters) {
  EXPECT_TRUE(IsPrintable("AH 海 \xc3\xa9"));
  EXPECT_EQ(Printable("a\nb\x1b[31m\x7f\xff"), "a?b?[31m??");
  EXPECT_EQ(Printable("x\xe2\x80\xae"
                      "y\xc2\x85"),
            "x?y?");
  EXPECT_EQ(Printable("x\xd8\x9cy"), "x?y");  // U+061C, the Arabic letter mark
  EXPECT_FALSE(IsPrintable("\t"));
  EXPECT_TRUE(IsPrintable(""));
}

}  // namespace
}  // namespace linnet
