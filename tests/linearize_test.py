#!/usr/bin/env python3
"""End-to-end tests of linnet linearize, on a tiny copy task.

    tests/linearize_test.py BIN_DIR [unittest arguments]
"""

import json

from cli_util import Case, main

NETWORK = ["--layers", "2", "--d-model", "16", "--heads", "2", "--max-length", "8", "--batch", "8", "--threads", "1"]


class Linearize(Case):
    def setUp(self):
        super().setUp()
        self.run_folder = self.dir / "softmax"
        self.linnet("train", "copy", "--attention", "full", *NETWORK, "--steps", "30", "--out", self.run_folder)

    def linearize(self, kind, *arguments):
        out = self.dir / kind.replace(":", "-").replace(",", "-")
        printed = self.linnet("linearize", self.run_folder, "--to", kind, "--out", out, *arguments)
        return out, json.loads((out / "linearize.json").read_text()), printed

    def test_the_same_function_by_another_kind_has_no_error(self):
        # The kind "kernel" with its default similarity, softmax, is softmax attention: copied weights give its outputs.
        out, record, _ = self.linearize("kernel", "--match-steps", "1", "--match-lr", "1e-12", "--steps", "0")
        self.assertEqual([layer["layer"] for layer in record["layers"]], [0, 1])
        for layer in record["layers"]:
            self.assertLess(layer["error_copied"], 1e-5)
            self.assertLess(layer["error_matched"], 1e-5)
        for name, value in record["given"].items():
            self.assertAlmostEqual(record["copied"][name], value, delta=1e-5 * max(1, abs(value)))
        self.assertNotIn("trained", record)
        self.assertFalse((out / "model.safetensors").exists())
        self.assertEqual(self.linnet_json("info", out / "matched.safetensors")["spec"]["attention"], "kernel")

    def test_matching_lowers_the_error_of_every_layer(self):
        for kind in ("gated-delta-net", "causal-linear"):
            out, record, printed = self.linearize(kind, "--match-steps", "60", "--match-lr", "3e-3", "--steps", "4")
            for layer in record["layers"]:
                self.assertLess(layer["error_matched"], 0.9 * layer["error_copied"], kind)
            self.assertEqual(record["steps"], 4)
            self.assertIn("trained", record)
            self.assertIn("layer 1", printed)
            self.assertEqual(self.linnet_json("info", out)["training"]["config"]["init"], "matched.safetensors")

    def test_layers_that_stay_are_copied_to_the_bit(self):
        out, record, _ = self.linearize("causal-linear,full", "--match-steps", "2", "--steps", "0")
        self.assertEqual([layer["layer"] for layer in record["layers"]], [0])
        given = self.tensors(self.run_folder / "model.safetensors")
        new = self.tensors(out / "matched.safetensors")
        for name, data in given.items():
            if ".layers.0.attention." not in name:
                self.assertEqual(new[name], data, name)
        changed = "transformer.layers.0.attention.query_projection.weight"
        self.assertNotEqual(new[changed], given[changed])

    def tensors(self, path):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        return {name: data[8 + size + info["data_offsets"][0]:8 + size + info["data_offsets"][1]]
                for name, info in header.items() if name != "__metadata__"}

    def test_bad_input(self):
        to = ["--to", "causal-linear", "--out", self.dir / "new"]
        self.refuses(["linearize", self.dir / "nowhere", *to], "nowhere", "not the folder of a training")
        self.refuses(["linearize", self.images, *to], "not the folder of a training")
        self.refuses(["linearize", self.run_folder, "--to", "full", "--out", self.dir / "new"], "attention already")
        self.refuses(["linearize", self.run_folder, "--to", "magic", "--out", self.dir / "new"], "magic")
        self.refuses(["linearize", self.run_folder, "--to", "causal-linear"], "--out")
        self.refuses(["linearize", self.run_folder, "--to", "causal-linear", "--out", self.run_folder], "already holds")
        self.refuses(["linearize", self.run_folder, *to, "--match-steps", "0"], "--match-steps")
        self.refuses(["linearize", self.run_folder], "--to")


if __name__ == "__main__":
    main()
