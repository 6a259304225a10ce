#!/usr/bin/env python3
"""Compares the Python package linnet with the program: images, text, couplets, speech and states.

    tests/python_tasks_test.py BIN_DIR BUILD_DIR [unittest arguments]

Needs numpy and venv: see python_package_util.py.
"""

import json
import unittest
import wave

import python_package_util as util
from python_package_util import BYTE_PAIRS, CAUSAL_PHONES, COUPLET, DIGITS, PHONES, TEXTS, Case

if __name__ == "__main__":
    util.enter()

import cli_util  # noqa: E402
import linnet  # noqa: E402
import numpy as np  # noqa: E402


class ImagesTest(Case):
    def setUp(self):
        super().setUp()
        self.model = linnet.Model(DIGITS)

    def sheet(self, path, columns, rows):
        """The images of a PNG sheet with a scale and gap of 1: uint8 [rows, columns, 28, 28]."""
        width, height, lines = cli_util.read_png(path)
        pixels = np.frombuffer(b"".join(lines), np.uint8).reshape(height, width)
        edge = (width - 28 * columns) // (columns + 1)  # width of the margin: 1 or 0
        cells = [[pixels[edge + y * 29:][:28, edge + x * 29:][:, :28] for x in range(columns)] for y in range(rows)]
        return np.array(cells)

    def test_sample_as_the_program_does(self):
        self.program("sample", DIGITS, "--count", 4, "--columns", 2, "--scale", 1, "--seed", 5, "--temperature", 0.9,
                     "--out", "sheet.png")
        drawn = self.model.sample(4, seed=5, temperature=0.9)
        self.assertEqual((drawn.shape, drawn.dtype), ((4, 28, 28), np.uint8))
        self.assertTrue(np.array_equal(drawn.reshape(2, 2, 28, 28), self.sheet(self.dir / "sheet.png", 2, 2)))
        self.assertTrue(np.array_equal(self.model.sample(2, 5, 0.9, batch=1, first_stream=2), drawn[2:]))
        self.assertFalse(np.array_equal(self.model.sample(2), self.model.sample(2)))  # each call draws a seed

    def test_complete_as_the_program_does(self):
        self.program("complete", DIGITS, "--count", 3, "--scale", 1, "--seed", 5, "--rows-known", 10, "--out",
                     "sheet.png")
        sheet = self.sheet(self.dir / "sheet.png", 3, 3)  # rows of the sheet: known parts, completions, originals
        originals = self.model.sample(3, seed=5)
        self.assertTrue(np.array_equal(originals, sheet[2]))
        completed = self.model.complete(originals, 10, seed=5, first_stream=3)
        self.assertTrue(np.array_equal(completed, sheet[1]))
        self.assertTrue(np.array_equal(self.model.complete(originals[0], 28), originals[:1]))
        halves = self.model.complete(originals, seed=1)
        self.assertTrue(np.array_equal(halves[:, :14], originals[:, :14]))

    def test_bits_per_dim_as_the_program_does(self):
        cli_util.write_mnist(self.dir / "mnist", images=3)
        expected = json.loads(self.program("eval", DIGITS, "--data", self.dir / "mnist", "--json"))
        images = np.frombuffer(cli_util.digits(3, 2), np.uint8).reshape(3, 28, 28)
        self.assertAlmostEqual(self.model.bits_per_dim(images), expected["bits_per_dim"], places=6)
        each = self.model.bits_per_dim(images, each=True)
        self.assertEqual(each.shape, (3,))
        self.assertAlmostEqual(float(each.mean()), expected["bits_per_dim"], places=6)
        self.assertAlmostEqual(self.model.bits_per_dim(images[1]), each[1], places=9)

    def test_refusals(self):
        model, image = self.model, np.zeros((28, 28), np.uint8)
        for call, reason in (
                (lambda: model.sample(0), "count must be 1 to 1000000000, not 0"),
                (lambda: model.sample(2.5), "count must be an integer, not 2.5"),
                (lambda: model.sample(True), "count must be an integer, not True"),
                (lambda: model.sample(1, seed=-1), "seed must be 0 to 18446744073709551615, not -1"),
                (lambda: model.sample(1, temperature=0), "temperature must be above 0"),
                (lambda: model.sample(1, temperature="hot"), "temperature must be a finite number, not 'hot'"),
                (lambda: model.sample(1, batch=0), "batch must be 1 to 65536"),
                (lambda: model.complete(image / 255.0, 3), "images must be uint8, 0 to 255, not float64"),
                (lambda: model.complete(image[:, :27], 3), r"must have the shape \[count, 28, 28\], not \[28, 27\]"),
                (lambda: model.complete(np.zeros((0, 28, 28), np.uint8), 3), r"not \[0, 28, 28\]"),
                (lambda: model.complete([[1, 2], [3]], 3), "images "),
                (lambda: model.complete(image, 29), "known must be 1 to 28, not 29"),
                (lambda: model.bits_per_dim(None), "images must be an array of numbers"),
                (lambda: model.generate("a"), "of the task 'images', but generate.. needs one of 'text'"),
                (lambda: model.transcribe(np.zeros(9), 16000), "needs one of 'speech'"),
                (lambda: model.couplets("a"), "needs one of 'couplet'"),
                (lambda: model.encode("a"), "digits.safetensors"),
                (lambda: linnet.Model(TEXTS[0]).sample(1), "but sample.. needs one of images"),
                (lambda: linnet.Model("/nowhere"), "/nowhere"),
                (lambda: linnet.Model(3.5), "path must be a str or a path, not 3.5"),
                (lambda: linnet.Model("a\0b"), "path holds a NUL character"),
                (lambda: linnet.Model(DIGITS, "f64"), "precision must be None or one of f32, bf16, int8, not 'f64'"),
                (lambda: linnet.Model(DIGITS, threads=-1), "threads must be 0 to 1024, not -1"),
                (lambda: linnet.Model.from_bytes(b"no model"), "memory"),
                (lambda: linnet.Model.from_bytes("text"), "data must be the bytes of a model file")):
            with self.subTest(reason), self.assertRaisesRegex(linnet.InputError, reason) as raised:
                call()
            self.assertIsInstance(raised.exception, (linnet.Error, ValueError))
            self.assertNotIn("\n", str(raised.exception))


class TextTest(Case):
    def test_generate_as_the_program_does(self):
        for path in TEXTS + [BYTE_PAIRS]:
            model = linnet.Model(path)
            for seed, how in ((1, {}), (2, dict(temperature=0.7, top_k=9, top_p=0.9)), (3, dict(stop=["e", "\n\n"])),
                              (4, dict(max_tokens=3)), (5, dict(temperature=0)), (6, dict(stop="ab"))):
                stops = [how["stop"]] if isinstance(how.get("stop"), str) else how.get("stop", [])
                options = [part for name, value in how.items() if name != "stop"
                           for part in ("--" + name.replace("_", "-"), value)]
                options += [part for stop in stops for part in ("--stop", stop)]
                said = json.loads(self.program("generate", path, "--prompt", "To be", "--seed", seed, "--json",
                                               *options))
                with self.subTest(path=path.name, seed=seed):
                    self.assertEqual(model.generate("To be", seed=seed, **how), said["text"])
                    pieces = list(model.generate("To be", seed=seed, stream=True, **how))
                    self.assertEqual("".join(pieces), said["text"])
                    self.assertNotIn("", pieces)

    def test_grammars(self):
        schema = {"type": "object", "properties": {"b": {"type": "integer", "minimum": 1, "maximum": 99},
                                                   "a": {"enum": ["x", "海"]}}, "required": ["b", "a"]}
        for path in [TEXTS[0], BYTE_PAIRS]:
            model = linnet.Model(path)
            for grammar, pattern in ((linnet.Grammar("root ::= [a-c]{7} \"-\" [0-9]"), "[a-c]{7}-[0-9]"),
                                     (linnet.Grammar.of_json_schema(schema), '{"b": ?[1-9][0-9]?, ?"a": ?"(x|海)"}'),
                                     (linnet.Grammar.of_json_schema(json.dumps(schema)), '{"b".*}')):
                with self.subTest(path=path.name, pattern=pattern):
                    text = model.generate("To be", seed=1, grammar=grammar)
                    self.assertRegex(text, f"^{pattern}$")
                    self.assertEqual("".join(model.generate("To be", seed=1, grammar=grammar, stream=True)), text)
        model = linnet.Model(TEXTS[0])
        file = self.dir / "schema.json"
        file.write_text(json.dumps(schema))
        said = json.loads(self.program("generate", TEXTS[0], "--prompt", "To be", "--seed", 1, "--json",
                                       "--json-schema", file))
        self.assertEqual(said["text"], model.generate("To be", seed=1, grammar=linnet.Grammar.of_json_schema(schema)))
        self.assertEqual(said["ended_by"], "grammar")
        for call, reason in (
                (lambda: model.generate("a", grammar="root"), "grammar must be a linnet.Grammar, not 'root'"),
                (lambda: linnet.Grammar("root ::= (\n"), "the grammar, line 2: expected"),
                (lambda: linnet.Grammar.of_json_schema({"not": {}}), "the schema, #: 'not' is not supported here"),
                (lambda: linnet.Grammar.of_json_schema({"const": {1}}), "schema must be a dict or JSON"),
                (lambda: linnet.Grammar(3), "text must be a str, not 3")):
            with self.subTest(reason), self.assertRaisesRegex(linnet.InputError, reason):
                call()

    def test_a_stream_computes_only_what_is_taken(self):
        model = linnet.Model(TEXTS[1])
        text = model.generate("To be", 1000, temperature=0.5, seed=1)
        stream = model.generate("To be", 1000, temperature=0.5, seed=1, stream=True)
        self.assertEqual(next(stream) + next(stream), text[:2])
        self.assertEqual(model.generate("To be", 1000, temperature=0.5, seed=1), text)  # while the stream is open
        self.assertEqual(next(stream), text[2])
        stream.close()
        self.assertEqual(list(stream), [])

    def test_log_likelihood(self):
        for path in TEXTS:
            model = linnet.Model(path)
            tokens = model.encode("To be")
            logits = model.new_state().read([0, *tokens[:-1]], every=True)[0].astype(np.float64)
            expected = sum(row[token] - np.log(np.exp(row).sum()) for row, token in zip(logits, tokens))
            self.assertAlmostEqual(model.log_likelihood("To be"), expected, places=3)

    def test_encode_and_decode(self):
        model = linnet.Model(TEXTS[0])
        text = "naïve\0 海"
        tokens = model.encode(text)
        self.assertEqual((tokens.dtype, len(tokens)), (np.int32, len(text.encode())))
        self.assertEqual(model.decode(tokens), text)
        self.assertEqual(model.decode(tokens[:3].tolist() + [0, 1, 2]), "na\ufffd\ufffd")
        self.assertEqual((model.encode("").size, model.decode([])), (0, ""))

    def test_choose(self):
        logits = np.array([0.0, 1.0, 3.0, 2.0], np.float32)
        self.assertEqual(linnet.choose(logits, temperature=0), 2)
        self.assertEqual({linnet.choose(logits, top_k=2, draw=draw) for draw in range(200)}, {2, 3})
        self.assertEqual({linnet.choose(logits, seed=seed) for seed in range(200)}, {0, 1, 2, 3})

    def test_refusals(self):
        model = linnet.Model(TEXTS[0])
        for call, reason in (
                (lambda: model.generate(b"a"), "prompt must be a str, not b'a'"),
                (lambda: model.generate("\ud800"), "prompt has a lone surrogate at index 0"),
                (lambda: model.generate("a", 0), "max_tokens must be at least 1, not 0"),
                (lambda: model.generate("a", temperature=-1), "temperature must be 0 to 1e6, not -1"),
                (lambda: model.generate("a", top_p=0, stream=True), "top_p must be above 0 and at most 1, not 0"),
                (lambda: model.generate("a", top_k=-1), "top_k must be at least 0"),
                (lambda: model.generate("a", stop=3), "stop must be a str or a list of them, not 3"),
                (lambda: model.generate("a", stop=[""]), "stop must not hold an empty string"),
                (lambda: model.decode([1.5]), "tokens must be integers, not float64"),
                (lambda: model.decode([2**40]), "tokens must be 32-bit integers, not 1099511627776"),
                (lambda: model.decode([[1]]), "tokens must be one-dimensional"),
                (lambda: linnet.choose([[1.0]]), "logits must be a one-dimensional array"),
                (lambda: linnet.choose([np.nan]), "")):
            with self.subTest(reason), self.assertRaisesRegex(linnet.InputError, reason):
                call()


class CoupletTest(Case):
    def test_as_the_program_does(self):
        model = linnet.Model(COUPLET)
        for options, how in (([], {}), (["--draw", "--seed", 3, "--temperature", 0.8],
                                        dict(beam=0, seed=3, temperature=0.8)),
                             (["--draw", "--free", "--seed", 3], dict(beam=0, seed=3, rules=False))):
            answers = json.loads(self.program("couplet", COUPLET, "海上明月", "--json", *options))[0]["answers"]
            found = model.couplets("海上明月", **how)
            self.assertEqual([line.text for line in found], [answer["text"] for answer in answers])
            for line, answer in zip(found, answers):
                self.assertAlmostEqual(line.log_probability, answer["log_probability"], places=6)
                self.assertEqual(len(line.scores), len(line.text))
                np.testing.assert_allclose(line.scores, answer["scores"], atol=1e-9)
                if how.get("rules", True):
                    self.assertAlmostEqual(sum(line.scores), line.log_probability, places=6)
        for call in (lambda: model.couplets(""), lambda: model.couplets("月", 0),
                     lambda: model.couplets("月", rules=False)):
            self.assertRaises(linnet.InputError, call)


def like_speech(seconds, seed=1):
    """Audio in which the shipped models recognize phones: int16, 16000 samples per second. Every quarter of a second,
    pulses or noise pass through three new resonances."""
    rng, part, pieces = np.random.RandomState(seed), 4000, []
    time = np.arange(part) / 16000
    for _ in range(4 * seconds):
        ring = sum(0.97 ** np.arange(part) * np.sin(2 * np.pi * pitch * time)
                   for pitch in rng.choice([300, 500, 700, 1000, 1500, 2000, 2500, 3500], 3, replace=False))
        source = np.where(np.arange(part) % 133 == 0, 1.0, 0.0) if rng.rand() < 0.75 else rng.randn(part) * 0.1
        pieces.append(np.convolve(source, ring)[:part] * rng.uniform(0.2, 1))
    samples = np.concatenate(pieces)
    return np.round(16000 * samples / np.abs(samples).max()).astype(np.int16)


class SpeechTest(Case):
    def setUp(self):
        super().setUp()
        self.samples = like_speech(2)
        self.file = self.dir / "sound.wav"
        with wave.open(str(self.file), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16000)
            out.writeframes(self.samples.tobytes())

    def said(self, phones):
        return [(phone["phone"], phone["seconds"], round(phone["probability"], 6)) for phone in phones]

    def heard(self, phones):
        return [(name, seconds, round(probability, 6)) for name, seconds, probability in phones]

    def transcribed(self, *arguments):
        """What the program hears in the file."""
        if not (util.BIN / "linnet-speech").exists():
            self.skipTest("built without linnet-speech")
        return self.program("transcribe", *arguments, self.file)

    def test_transcribe_as_the_program_does(self):
        model = linnet.Model(PHONES)
        for beam in (1, 8):
            said = json.loads(self.transcribed(PHONES, "--json", "--beam", beam))[0]["phones"]
            self.assertTrue(said)
            for samples in (self.samples, self.samples / 32768, (self.samples / 32768).astype(np.float32)):
                self.assertEqual(self.heard(model.transcribe(samples, 16000, beam)), self.said(said))

    def test_a_stream_as_the_program_does(self):
        model = linnet.Model(CAUSAL_PHONES)
        said = [json.loads(line) for line in
                self.transcribed(CAUSAL_PHONES, "--causal", "--json").splitlines()]
        self.assertTrue(said)
        transcriber, heard = model.transcriber(16000), []
        self.assertGreater(transcriber.delay, 0)
        for begin in range(0, len(self.samples), 1600):
            heard += transcriber.feed(self.samples[begin:begin + 1600])
        heard += transcriber.feed(self.samples[:0]) + transcriber.finish()
        self.assertEqual(self.heard(heard), self.said(said))
        self.assertEqual(transcriber.phones, heard)
        for call in (transcriber.finish, lambda: transcriber.feed(self.samples)):
            self.assertRaises(linnet.InputError, call)

    def test_frames(self):
        model = linnet.Model(CAUSAL_PHONES)
        frames = model.frames(self.samples, 16000)
        self.assertEqual(frames.shape, ((len(self.samples) - 400) // 160 + 1, 40))
        self.assertTrue(np.isfinite(frames).all())
        np.testing.assert_array_equal(model.frames(self.samples[800:], 16000), frames[5:])
        self.assertRaises(linnet.InputError, model.frames, self.samples, 8000)

    def test_refusals(self):
        model = linnet.Model(PHONES)
        for call, reason in (
                (lambda: model.transcribe(self.samples, 8000), "needs audio of 16000 samples per second, not 8000"),
                (lambda: model.transcribe(self.samples[:10], 16000), ""),
                (lambda: model.transcribe(np.zeros((9, 2)), 16000), r"one channel.*\[9, 2\]; average the channels"),
                (lambda: model.transcribe(np.zeros(9, np.int32), 16000), "or int16, not int32"),
                (lambda: model.transcribe(np.full(16000, np.nan), 16000), "samples hold NaN"),
                (model.transcriber, "phones.safetensors"),
                (lambda: linnet.Model(CAUSAL_PHONES).transcriber(8000), "not 8000")):
            with self.subTest(reason), self.assertRaisesRegex(linnet.InputError, reason):
                call()


class StateTest(Case):
    def setUp(self):
        super().setUp()
        self.model = linnet.Model(TEXTS[0])
        self.tokens = np.random.RandomState(1).randint(3, 259, (3, 12))

    def test_step_and_read_agree(self):
        state, read = self.model.new_state(3), self.model.new_state(3)
        steps = np.stack([state.step(self.tokens[:, i]) for i in range(12)], 1)
        every = read.read(self.tokens, every=True)
        self.assertEqual((steps.shape, steps.dtype, every.shape), ((3, 12, 259), np.float32, (3, 12, 259)))
        self.assertLess(np.abs(steps - every).max(), 1e-4)
        self.assertEqual((len(state), state.positions.tolist()), (3, [12, 12, 12]))
        self.assertLess(np.abs(self.model.new_state(3).read(self.tokens) - every[:, -1]).max(), 1e-4)
        self.assertEqual(self.model.new_state().step(7).shape, (1, 259))
        self.assertEqual(self.model.new_state().read([7, 8]).shape, (1, 259))

    def test_copies_are_independent(self):
        import copy
        state = self.model.new_state(3)
        state.read(self.tokens)
        copies = [state.copy(), copy.copy(state), copy.deepcopy(state)]
        expected = state.step([3, 4, 5])
        for one in copies:
            self.assertEqual(one.positions.tolist(), [12] * 3)
            self.assertTrue(np.array_equal(one.step([3, 4, 5]), expected))

    def test_fork_select_append_and_reset(self):
        state = self.model.new_state(3)
        state.read(self.tokens)
        expected = state.copy().step([3, 4, 5])
        self.assertTrue(np.array_equal(state.fork(2).step([3, 3, 4, 4, 5, 5]), expected.repeat(2, 0)))
        self.assertTrue(np.array_equal(state.select([2, 0, 2]).step([5, 3, 5]), expected[[2, 0, 2]]))
        two = state.select(np.array([1]))
        two.append(state)
        two.append(two)
        self.assertTrue(np.array_equal(two.step([4, 3, 4, 5] * 2), expected[[1, 0, 1, 2] * 2]))
        state.reset(1)
        self.assertEqual(state.positions.tolist(), [12, 0, 12])
        state.reset()
        self.assertEqual(state.positions.tolist(), [0, 0, 0])
        self.assertGreaterEqual(state.nbytes, 3 * self.model.state_bytes)

    def test_a_state_in_a_file(self):
        state = self.model.new_state(3)
        state.read(self.tokens)
        state.save(self.dir / "a.state")
        loaded = self.model.load_state(self.dir / "a.state")
        self.assertTrue(np.array_equal(loaded.step([3, 4, 5]), state.step([3, 4, 5])))
        with self.assertRaisesRegex(linnet.InputError, "a.state"):
            linnet.Model(TEXTS[1]).load_state(self.dir / "a.state")

    def test_refusals(self):
        state, other = self.model.new_state(2), linnet.Model(TEXTS[1]).new_state()
        for call, reason in (
                (lambda: state.step([1]), r"must have the shape \[2\], one per sequence, not \[1\]"),
                (lambda: state.step([[1], [2]]), r"not \[2, 1\]"),
                (lambda: state.step([1, 300]), "300"),
                (lambda: state.step([1.0, 2.0]), "tokens must be integers, not float64"),
                (lambda: state.step(None), "tokens must be an array of numbers"),
                (lambda: state.read([1, 2]), r"must have the shape \[2, length\]"),
                (lambda: state.read(np.zeros((2, 0), int)), r"not \[2, 0\]"),
                (lambda: state.fork(0), "copies must be at least 1"),
                (lambda: state.fork(2**60), ""),
                (lambda: state.select([]), "at least one index"),
                (lambda: state.select([2]), r"sequences must be in 0 to 1, not \[2\]"),
                (lambda: state.select([-1]), "sequences must be in 0 to 1"),
                (lambda: state.append(other), ""),
                (lambda: state.append(3), "other must be a State, not 3"),
                (lambda: state.reset(2), "sequence must be 0 to 1, not 2"),
                (lambda: state.save(self.dir / "no" / "a.state"), "a.state"),
                (lambda: self.model.new_state(0), "batch must be at least 1"),
                (lambda: linnet.Model(PHONES).new_state(), "")):
            with self.subTest(reason), self.assertRaisesRegex(linnet.Error, reason):
                call()
        self.assertEqual(state.positions.tolist(), [0, 0])


if __name__ == "__main__":
    unittest.main()
