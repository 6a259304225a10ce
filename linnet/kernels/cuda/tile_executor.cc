#include "linnet/kernels/cuda/tile_executor.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "linnet/kernels/cuda/fiber.h"

namespace linnet::kernels::cuda {
namespace {

using Fault = TileFault::Fault;
using Where = std::source_location;

constexpr unsigned kMaxThreads = 1024;
constexpr size_t kMaxSharedBytes = 227 * 1024;
constexpr unsigned kPoison = 0xff;    // initial bytes of shared memory: NaN as float and as bf16
constexpr uint16_t kNobody = 0xffff;  // no thread

// Numbers source locations, so that the history of each byte stores them in 16 bits.
class Sites {
 public:
  uint16_t Number(Where where) {
    const size_t slot = (reinterpret_cast<uintptr_t>(where.file_name()) ^ where.line() * 31 ^
                         where.column() * 1021) %
                        recent_.size();
    if (const uint16_t n = recent_[slot]; n < all_.size() && Same(all_[n], where)) return n;
    const auto found =
        std::find_if(all_.begin(), all_.end(), [&](Where other) { return Same(other, where); });
    recent_[slot] = static_cast<uint16_t>(found - all_.begin());
    if (found == all_.end()) all_.push_back(where);
    return recent_[slot];
  }
  std::string Name(uint16_t number) const { return Name(all_[number]); }
  static std::string Name(Where where) {
    const std::string_view path = where.file_name();
    return StrCat(path.substr(path.rfind('/') + 1), ":", where.line());
  }

 private:
  static bool Same(Where a, Where b) {
    return a.line() == b.line() && a.column() == b.column() &&
           (a.file_name() == b.file_name() || !std::strcmp(a.file_name(), b.file_name()));
  }

  std::vector<Where> all_;
  std::array<uint16_t, 1024> recent_{};
};

// History of a byte of shared memory. Accesses are ordered by the number of Barrier()s before them
// (`epoch`) and, within a warp, by the number of its WarpBarrier()s before them (`warp_epoch`).
struct Shadow {
  uint32_t write_epoch = 0, write_warp_epoch = 0;  // the last write; epoch 0: none
  uint32_t read_epoch = 0, read_warp_epoch = 0;    // reads since the last barrier
  uint16_t writer = kNobody, write_site = 0;
  // Two of these readers, if possible from different warps. If there are readers in two warps,
  // every write races with one of them, so no more readers are recorded.
  uint16_t reader = kNobody, read_site = 0;
  uint16_t second = kNobody, second_site = 0;
  uint16_t copier = kNobody, copy_site = 0;  // the CopyAsync that is under way, if any
};

struct Copy {
  size_t byte;
  const void* from;  // null: zeros
  uint16_t site;
};

struct LoadMatrixArgs {
  uint32_t* r;
  size_t byte;  // first byte of the row that this lane names
};
struct MultiplyArgs {
  float* d;
  const uint32_t *a, *b;
};
struct ShuffleArgs {
  uint32_t value, result;
  unsigned lane;
};

// Later launches reuse fibers, because creating a fiber is slow under ThreadSanitizer.
std::unique_ptr<Fiber> TakeFiber(std::vector<std::unique_ptr<Fiber>>& idle) {
  if (idle.empty()) return std::make_unique<Fiber>();
  auto fiber = std::move(idle.back());
  idle.pop_back();
  return fiber;
}
thread_local std::vector<std::unique_ptr<Fiber>> idle_fibers;

struct Thread {
  std::unique_ptr<Fiber> fiber = TakeFiber(idle_fibers);
  ExecutorBlock::Collective waits = ExecutorBlock::Collective::kNone;
  uint16_t site = 0;     // where the thread waits
  void* args = nullptr;  // arguments of the operation `waits`
  bool begun = false, ended = false;
  std::vector<Copy> open;                // copies after the last CopyCommit()
  std::deque<std::vector<Copy>> groups;  // committed copies that are under way
};

struct Warp {
  uint32_t epoch = 0;
  // Numbers of threads. waits: those that wait at the warp's collective operation (`collective`, at
  // `site`). at_barrier: those that wait at a Barrier(). ended: those whose program has ended.
  unsigned waits = 0, at_barrier = 0, ended = 0;
  ExecutorBlock::Collective collective = ExecutorBlock::Collective::kNone;
  uint16_t site = 0;
};

// Thrown in waiting fibers after a fault of another fiber, to unwind their stacks.
struct Cancel {};

const char* Name(ExecutorBlock::Collective collective) {
  switch (collective) {
    case ExecutorBlock::Collective::kNone:
      break;
    case ExecutorBlock::Collective::kBarrier:
      return "Barrier";
    case ExecutorBlock::Collective::kWarpBarrier:
      return "WarpBarrier";
    case ExecutorBlock::Collective::kShuffle:
      return "Shuffle";
    case ExecutorBlock::Collective::kLoadMatrix:
      return "LoadMatrix";
    case ExecutorBlock::Collective::kLoadMatrixTransposed:
      return "LoadMatrixTransposed";
    case ExecutorBlock::Collective::kMultiply:
      return "Multiply";
  }
  return "nothing";
}

class Block final : public ExecutorBlock {
 public:
  explicit Block(const TileLaunch& launch)
      : launch_(launch),
        memory_(static_cast<unsigned char*>(
            std::aligned_alloc(128, (launch.shared_bytes + 128) / 128 * 128))),
        shadow_(launch.shared_bytes),
        threads_(launch.threads),
        warps_(launch.threads / kWarp),
        rng_(launch.seed) {
    if (!memory_) throw std::bad_alloc();
  }
  ~Block() override {
    for (Thread& thread : threads_) {
      if (thread.fiber->done()) idle_fibers.push_back(std::move(thread.fiber));
    }
  }

  void Run(const std::array<unsigned, 3>& index, const std::function<void(ExecutorTile&)>& program);

  const unsigned char* Read(unsigned thread, size_t array, size_t array_bytes, size_t offset,
                            size_t bytes, size_t align, Where where) override {
    const uint16_t site = sites_.Number(where);
    const size_t byte = Check(thread, array, array_bytes, offset, bytes, align, "reads", site);
    RecordRead(thread, byte, bytes, site);
    return memory_.get() + byte;
  }
  unsigned char* Write(unsigned thread, size_t array, size_t array_bytes, size_t offset,
                       size_t bytes, size_t align, Where where) override {
    const uint16_t site = sites_.Number(where);
    const size_t byte = Check(thread, array, array_bytes, offset, bytes, align, "writes", site);
    RecordWrite(thread, byte, bytes, site, "writes");
    return memory_.get() + byte;
  }
  void CheckArray(unsigned thread, size_t array, size_t array_bytes, size_t align,
                  Where where) override;

  void Barrier(unsigned thread, Where where) override {
    Wait(thread, Collective::kBarrier, nullptr, where);
  }
  void WarpBarrier(unsigned thread, Where where) override {
    Wait(thread, Collective::kWarpBarrier, nullptr, where);
  }
  uint32_t Shuffle(unsigned thread, uint32_t value, unsigned lane, Where where) override {
    if (lane >= kWarp) {
      Throw(Fault::kBounds, thread, sites_.Number(where), "shuffles from lane ", lane,
            ", but a warp has lanes 0 to 31");
    }
    ShuffleArgs args{value, 0, lane};
    Wait(thread, Collective::kShuffle, &args, where);
    return args.result;
  }
  void CopyAsync(unsigned thread, size_t array, size_t array_bytes, size_t offset, const void* from,
                 bool valid, Where where) override;
  void CopyCommit(unsigned thread) override {
    Thread& me = threads_[thread];
    me.groups.push_back(std::exchange(me.open, {}));
  }
  void CopyWait(unsigned thread, size_t pending) override;
  void LoadMatrix(unsigned thread, uint32_t* r, bool transposed, size_t array, size_t array_bytes,
                  size_t offset, Where where) override {
    const uint16_t site = sites_.Number(where);
    LoadMatrixArgs args{r, Check(thread, array, array_bytes, offset, 16, 16, "loads", site)};
    Wait(thread, transposed ? Collective::kLoadMatrixTransposed : Collective::kLoadMatrix, &args,
         where);
  }
  void Multiply(unsigned thread, float* d, const uint32_t* a, const uint32_t* b,
                Where where) override {
    MultiplyArgs args{d, a, b};
    Wait(thread, Collective::kMultiply, &args, where);
  }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };

  // Throws a TileFault with the message "file.h:12: thread 3 of block (0, 0, 0) " + the parts.
  template <typename... Parts>
  [[noreturn]] void Throw(Fault fault, unsigned thread, uint16_t site, const Parts&... parts) {
    throw TileFault(fault, StrCat(sites_.Name(site), ": thread ", thread, " of block (", index_[0],
                                  ", ", index_[1], ", ", index_[2], ") ", parts...));
  }
  size_t Check(unsigned thread, size_t array, size_t array_bytes, size_t offset, size_t bytes,
               size_t align, const char* verb, uint16_t site);
  void RecordRead(unsigned thread, size_t byte, size_t bytes, uint16_t site);
  void RecordWrite(unsigned thread, size_t byte, size_t bytes, uint16_t site, const char* verb);
  [[noreturn]] void ThrowRace(unsigned thread, const char* verb, size_t byte, unsigned other,
                              const char* other_verb, uint16_t other_site, uint16_t site);

  void RunThread(unsigned thread, const std::function<void(ExecutorTile&)>& program);
  unsigned NextReady();
  void Wait(unsigned thread, Collective collective, void* args, Where where);
  void Release(unsigned thread);
  [[noreturn]] void ThrowDivergence(unsigned thread, Collective collective, uint16_t site);
  // Performs `collective` for the warp whose first thread is `first`. All threads of the warp must
  // be waiting at `collective`.
  void Complete(unsigned first, Collective collective);
  void CompleteShuffle(unsigned first);
  void CompleteLoadMatrix(unsigned first, bool transposed);
  void CompleteMultiply(unsigned first);
  template <typename T>
  T& Args(unsigned thread) {
    return *static_cast<T*>(threads_[thread].args);
  }
  void End(unsigned thread);
  void Unwind();

  const TileLaunch launch_;
  const std::unique_ptr<unsigned char, Free> memory_;
  std::vector<Shadow> shadow_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::mt19937_64 rng_;
  Sites sites_;

  std::array<unsigned, 3> index_{};
  uint32_t epoch_ = 0, first_epoch_ = 0;  // the current epoch, and the running block's first
  unsigned at_barrier_ = 0, ended_ = 0;   // threads that wait at a Barrier(), and that have ended
  uint16_t barrier_site_ = 0;
  std::deque<uint16_t> ready_;
  std::exception_ptr fault_;
  bool cancel_ = false;
};

void Block::Run(const std::array<unsigned, 3>& index,
                const std::function<void(ExecutorTile&)>& program) {
  index_ = index;
  first_epoch_ = ++epoch_;
  std::memset(memory_.get(), kPoison, launch_.shared_bytes);
  for (unsigned t = 0; t < launch_.threads; ++t) {
    threads_[t].begun = threads_[t].ended = false;
    threads_[t].fiber->Start([this, t, &program] { RunThread(t, program); });
    Release(t);
  }
  ended_ = 0;
  for (Warp& warp : warps_) warp.ended = 0;
  while (!ready_.empty() && !fault_) threads_[NextReady()].fiber->Resume();
  if (fault_) {
    Unwind();
    std::rethrow_exception(fault_);
  }
}

void Block::RunThread(unsigned thread, const std::function<void(ExecutorTile&)>& program) {
  threads_[thread].begun = true;
  try {
    ExecutorTile tile(this, thread, launch_.threads, index_);
    program(tile);
    End(thread);
  } catch (const Cancel&) {
  } catch (...) {
    fault_ = std::current_exception();
  }
}

// Unwinds the threads that a fault has left waiting, so that the destructors of their objects run.
void Block::Unwind() {
  cancel_ = true;
  for (Thread& thread : threads_) {
    // Resume() would start the program of a thread that has not begun.
    if (!thread.fiber->done() && thread.begun) thread.fiber->Resume();
  }
}

unsigned Block::NextReady() {
  if (launch_.seed) {
    std::uniform_int_distribution<size_t> any(0, ready_.size() - 1);
    std::swap(ready_[any(rng_)], ready_.front());
  }
  const unsigned next = ready_.front();
  ready_.pop_front();
  return next;
}

// ---- Shared memory ----

void Block::CheckArray(unsigned thread, size_t array, size_t array_bytes, size_t align,
                       Where where) {
  if (array + array_bytes > launch_.shared_bytes) {
    Throw(Fault::kBounds, thread, sites_.Number(where), "has an array at bytes ", array, " to ",
          array + array_bytes, ", but the block has ", launch_.shared_bytes,
          " bytes of shared memory");
  }
  if (array % align) {
    Throw(Fault::kAlignment, thread, sites_.Number(where), "has an array at byte ", array,
          ", which is not aligned to ", align);
  }
}

size_t Block::Check(unsigned thread, size_t array, size_t array_bytes, size_t offset, size_t bytes,
                    size_t align, const char* verb, uint16_t site) {
  const size_t byte = array + offset;
  if (offset > array_bytes || bytes > array_bytes - offset) {
    Throw(Fault::kBounds, thread, site, verb, " bytes ", byte, " to ", byte + bytes,
          " of shared memory, outside of its array at bytes ", array, " to ", array + array_bytes);
  }
  if (byte % align) {
    Throw(Fault::kAlignment, thread, site, verb, " byte ", byte,
          " of shared memory, which is not aligned to ", align);
  }
  return byte;
}

void Block::ThrowRace(unsigned thread, const char* verb, size_t byte, unsigned other,
                      const char* other_verb, uint16_t other_site, uint16_t site) {
  Throw(Fault::kRace, thread, site, verb, " byte ", byte, " of shared memory, which thread ", other,
        " ", other_verb, " at ", sites_.Name(other_site), ", with no barrier between");
}

void Block::RecordRead(unsigned thread, size_t byte, size_t bytes, uint16_t site) {
  const uint32_t warp_epoch = warps_[thread / kWarp].epoch;
  for (const size_t end = byte + bytes; byte < end; ++byte) {
    Shadow& s = shadow_[byte];
    if (s.copier != kNobody) {
      Throw(Fault::kCopy, thread, site, "reads byte ", byte,
            " of shared memory, where the CopyAsync of thread ", s.copier, " at ",
            sites_.Name(s.copy_site), " is under way");
    }
    if (s.write_epoch < first_epoch_) {
      Throw(Fault::kUninitialized, thread, site, "reads byte ", byte,
            " of shared memory, which the block has not written");
    }
    if (s.write_epoch == epoch_ && s.writer != thread &&
        (s.writer / kWarp != thread / kWarp || s.write_warp_epoch == warp_epoch)) {
      ThrowRace(thread, "reads", byte, s.writer, "wrote", s.write_site, site);
    }
    const bool first = s.read_epoch != epoch_;
    const bool two_warps = !first && s.second != kNobody && s.second / kWarp != s.reader / kWarp;
    const bool same_warp = !first && s.reader / kWarp == thread / kWarp;
    if (first || (same_warp && !two_warps && s.read_warp_epoch != warp_epoch)) {
      s.read_epoch = epoch_;
      s.read_warp_epoch = warp_epoch;
      s.reader = static_cast<uint16_t>(thread);
      s.read_site = site;
      s.second = kNobody;
    } else if (s.reader != thread && !two_warps) {
      s.second = static_cast<uint16_t>(thread);
      s.second_site = site;
    }
  }
}

void Block::RecordWrite(unsigned thread, size_t byte, size_t bytes, uint16_t site,
                        const char* verb) {
  const uint32_t warp_epoch = warps_[thread / kWarp].epoch;
  const auto races = [&](unsigned other, uint32_t epoch, uint32_t other_warp_epoch) {
    return other != kNobody && other != thread && epoch == epoch_ &&
           (other / kWarp != thread / kWarp || other_warp_epoch == warp_epoch);
  };
  for (const size_t end = byte + bytes; byte < end; ++byte) {
    Shadow& s = shadow_[byte];
    if (s.copier != kNobody) {
      Throw(Fault::kCopy, thread, site, verb, " byte ", byte,
            " of shared memory, where the CopyAsync of thread ", s.copier, " at ",
            sites_.Name(s.copy_site), " is under way");
    }
    if (races(s.writer, s.write_epoch, s.write_warp_epoch)) {
      ThrowRace(thread, verb, byte, s.writer, "wrote", s.write_site, site);
    }
    if (races(s.reader, s.read_epoch, s.read_warp_epoch)) {
      ThrowRace(thread, verb, byte, s.reader, "read", s.read_site, site);
    }
    if (races(s.second, s.read_epoch, s.read_warp_epoch)) {
      ThrowRace(thread, verb, byte, s.second, "read", s.second_site, site);
    }
    s.write_epoch = epoch_;
    s.write_warp_epoch = warp_epoch;
    s.writer = static_cast<uint16_t>(thread);
    s.write_site = site;
  }
}

// ---- Copies ----

void Block::CopyAsync(unsigned thread, size_t array, size_t array_bytes, size_t offset,
                      const void* from, bool valid, Where where) {
  const uint16_t site = sites_.Number(where);
  const size_t byte = Check(thread, array, array_bytes, offset, 16, 16, "copies to", site);
  if (reinterpret_cast<uintptr_t>(from) % 16) {
    Throw(Fault::kAlignment, thread, site, "copies from global memory that is not aligned to 16");
  }
  // The copy may write at any time from now on.
  RecordWrite(thread, byte, 16, site, "copies to");
  for (size_t i = byte; i < byte + 16; ++i) {
    shadow_[i].copier = static_cast<uint16_t>(thread);
    shadow_[i].copy_site = site;
  }
  threads_[thread].open.push_back({byte, valid ? from : nullptr, site});
}

void Block::CopyWait(unsigned thread, size_t pending) {
  auto& groups = threads_[thread].groups;
  for (; groups.size() > pending; groups.pop_front()) {
    for (const Copy& copy : groups.front()) {
      for (size_t i = copy.byte; i < copy.byte + 16; ++i) shadow_[i].copier = kNobody;
      RecordWrite(thread, copy.byte, 16, copy.site, "copies to");
      if (copy.from) {
        std::memcpy(memory_.get() + copy.byte, copy.from, 16);
      } else {
        std::memset(memory_.get() + copy.byte, 0, 16);
      }
    }
  }
}

// ---- Barriers and other collective operations ----

void Block::Wait(unsigned thread, Collective collective, void* args, Where where) {
  Thread& me = threads_[thread];
  Warp& warp = warps_[thread / kWarp];
  const uint16_t site = sites_.Number(where);
  const bool all = collective == Collective::kBarrier;
  if (all ? warp.waits || ended_ || (at_barrier_ && barrier_site_ != site)
          : warp.at_barrier || warp.ended ||
                (warp.waits && (warp.collective != collective || warp.site != site))) {
    ThrowDivergence(thread, collective, site);
  }
  me.waits = collective;
  me.site = site;
  me.args = args;
  if (all) {
    barrier_site_ = site;
    ++warp.at_barrier;
    if (++at_barrier_ == launch_.threads) {
      at_barrier_ = 0;
      ++epoch_;
      for (Warp& each : warps_) each.at_barrier = 0;
      for (unsigned t = 0; t < launch_.threads; ++t) Release(t);
    }
  } else {
    warp.collective = collective;
    warp.site = site;
    if (++warp.waits == kWarp) {
      const unsigned first = thread / kWarp * kWarp;
      Complete(first, collective);
      warp.waits = 0;
      for (unsigned t = first; t < first + kWarp; ++t) Release(t);
    }
  }
  me.fiber->Yield();
  if (cancel_) throw Cancel();
}

void Block::Release(unsigned thread) {
  threads_[thread].waits = Collective::kNone;
  ready_.push_back(static_cast<uint16_t>(thread));
}

void Block::End(unsigned thread) {
  Thread& me = threads_[thread];
  for (me.groups.push_back(std::move(me.open)); !me.groups.empty(); me.groups.pop_front()) {
    if (me.groups.front().empty()) continue;
    const Copy& copy = me.groups.front().front();
    Throw(Fault::kCopy, thread, copy.site, "ends without waiting for its CopyAsync to byte ",
          copy.byte, " of shared memory");
  }
  me.ended = true;
  ++ended_;
  ++warps_[thread / kWarp].ended;
  if (at_barrier_ || warps_[thread / kWarp].waits) {
    ThrowDivergence(thread, Collective::kNone, 0);
  }
}

// Throws a fault: `thread` waits at `collective`, but another thread, which the message names,
// waits elsewhere or has ended. kNone: `thread` ends, but another thread waits.
void Block::ThrowDivergence(unsigned thread, Collective collective, uint16_t site) {
  const bool ends = collective == Collective::kNone;
  const bool all = ends || collective == Collective::kBarrier;
  const std::string does = ends ? "ends" : StrCat("waits at ", Name(collective));
  for (unsigned t = 0; t < launch_.threads; ++t) {
    const Thread& other = threads_[t];
    const bool same_warp = t / kWarp == thread / kWarp;
    if (t == thread || !(all || same_warp)) continue;
    if (other.ended && !ends) {
      Throw(Fault::kDivergence, thread, site, does, ", but thread ", t, " has ended");
    }
    // Another warp that waits at an operation of its own may still reach the barrier.
    if (other.waits == Collective::kNone || !(same_warp || other.waits == Collective::kBarrier)) {
      continue;
    }
    if (other.waits == collective && other.site == site) continue;
    Throw(Fault::kDivergence, thread, ends ? other.site : site, does, ", but thread ", t,
          " waits at ", Name(other.waits), " (", sites_.Name(other.site), ")");
  }
  std::abort();  // a bug in the executor: there is no divergence
}

void Block::Complete(unsigned first, Collective collective) {
  switch (collective) {
    case Collective::kNone:
    case Collective::kBarrier:
      break;
    case Collective::kWarpBarrier:
      ++warps_[first / kWarp].epoch;
      break;
    case Collective::kShuffle:
      CompleteShuffle(first);
      break;
    case Collective::kLoadMatrix:
      CompleteLoadMatrix(first, false);
      break;
    case Collective::kLoadMatrixTransposed:
      CompleteLoadMatrix(first, true);
      break;
    case Collective::kMultiply:
      CompleteMultiply(first);
      break;
  }
}

void Block::CompleteShuffle(unsigned first) {
  for (unsigned l = 0; l < kWarp; ++l) {
    auto& to = Args<ShuffleArgs>(first + l);
    to.result = Args<ShuffleArgs>(first + to.lane).value;
  }
}

void Block::CompleteLoadMatrix(unsigned first, bool transposed) {
  for (unsigned l = 0; l < kWarp; ++l) {
    const unsigned g = l / 4, t = l % 4, thread = first + l;
    for (unsigned i = 0; i < 4; ++i) {
      const auto element = [&](unsigned row, unsigned column) {
        return Args<LoadMatrixArgs>(first + 8 * i + row).byte + column * sizeof(BFloat16);
      };
      const auto load = [&](size_t byte, void* to, size_t bytes) {
        RecordRead(thread, byte, bytes, threads_[thread].site);
        std::memcpy(to, memory_.get() + byte, bytes);
      };
      uint16_t pair[2];
      if (transposed) {
        load(element(2 * t, g), &pair[0], sizeof(BFloat16));
        load(element(2 * t + 1, g), &pair[1], sizeof(BFloat16));
      } else {
        load(element(g, 2 * t), pair, sizeof(pair));
      }
      Args<LoadMatrixArgs>(thread).r[i] = pair[0] | uint32_t{pair[1]} << 16;
    }
  }
}

void Block::CompleteMultiply(unsigned first) {
  double a[16][16], b[16][8];
  for (unsigned l = 0; l < kWarp; ++l) {
    const unsigned g = l / 4, t = l % 4;
    const auto& args = Args<MultiplyArgs>(first + l);
    for (unsigned i = 0; i < 4; ++i) {
      double* const to = &a[g + i % 2 * 8][2 * t + i / 2 * 8];
      to[0] = LowBf16(args.a[i]);
      to[1] = HighBf16(args.a[i]);
    }
    for (unsigned i = 0; i < 2; ++i) {
      b[2 * t + i * 8][g] = LowBf16(args.b[i]);
      b[2 * t + i * 8 + 1][g] = HighBf16(args.b[i]);
    }
  }
  for (unsigned row = 0; row < 16; ++row) {
    double sum[8] = {};
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned column = 0; column < 8; ++column) sum[column] += a[row][k] * b[k][column];
    }
    for (unsigned column = 0; column < 8; ++column) {
      const auto& args = Args<MultiplyArgs>(first + row % 8 * 4 + column / 2);
      float& d = args.d[row / 8 * 2 + column % 2];
      d = static_cast<float>(d + sum[column]);
    }
  }
}

void CheckLaunch(const TileLaunch& launch) {
  const auto [x, y, z] = launch.blocks;
  if (launch.threads == 0 || launch.threads % kWarp || launch.threads > kMaxThreads) {
    throw InputError("a block has ", launch.threads, " threads; use a multiple of ", kWarp,
                     ", at most ", kMaxThreads);
  }
  if (launch.shared_bytes > kMaxSharedBytes) {
    throw InputError("a block has ", launch.shared_bytes, " bytes of shared memory; use at most ",
                     kMaxSharedBytes);
  }
  if (x == 0 || y == 0 || z == 0 || x > 0x7fffffff || y > 0xffff || z > 0xffff) {
    throw InputError("a grid has ", x, " x ", y, " x ", z,
                     " blocks; use 1 to 2^31 - 1 in x, and 1 to 65535 in y and in z");
  }
}

}  // namespace

void RunTiles(const TileLaunch& launch, const std::function<void(ExecutorTile&)>& program) {
  CheckLaunch(launch);
  Block block(launch);
  const auto [columns, rows, planes] = launch.blocks;
  std::vector<std::array<unsigned, 3>> blocks;
  for (unsigned z = 0; z < planes; ++z) {
    for (unsigned y = 0; y < rows; ++y) {
      for (unsigned x = 0; x < columns; ++x) blocks.push_back({x, y, z});
    }
  }
  if (launch.seed) std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(launch.seed));
  for (const auto& index : blocks) block.Run(index, program);
}

}  // namespace linnet::kernels::cuda
