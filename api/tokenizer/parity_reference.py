"""Prints texts with the ids that the Python tokenizer of dataplane/reference gives, one JSON a line.

    parity_reference.py TOKENIZER_JSON COUNT SEED

tokenizer_test.cc compares the C++ tokenizer with these lines.
"""
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from dataplane.reference.train.tokenizer import Tokenizer  # noqa: E402

WORDS = ["the", " river", "Hello", " 12345", "\n", "\r\n\r\n", "  ", "\t", "don't", "!abc", " !", "中文",
         "かな漢字ー", "々", "한국어", "é", "e\u0301", "½Ⅷ²", "😀", "\u00a0", "\u200b", "\x00", "{\"a\": 1}",
         "<think>", "</think>", "<｜User｜>", "｜DSML｜", "<｜", "｜>", "<", "Ünïcödé", ".\n\n", "  \n x"]


def random_text(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randrange(12)):
        if rng.random() < 0.8:
            parts.append(rng.choice(WORDS))
        else:
            parts.append(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xA0, 0x3000)])))
    return "".join(parts)


def main() -> None:
    path, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    tokenizer = Tokenizer.load(path)
    rng = random.Random(seed)
    for _ in range(count):
        text = random_text(rng)
        print(json.dumps({"text": text, "plain": tokenizer.encode_plain(text), "special": tokenizer.encode(text)}))


if __name__ == "__main__":
    main()
