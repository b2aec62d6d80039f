import json
import random

import pytest

from reference.train import tokenizer as T
from reference.train.run import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


# The cut examples of the format's description; single digits are this tokenizer's own rule.
@pytest.mark.parametrize("text,pieces", [
    ("a  b", ["a", " ", " b"]), ("a  1", ["a", "  ", "1"]), ("a  中", ["a", "  ", "中"]),
    ("a \nb", ["a", " \n", "b"]), ("don't", ["don", "'t"]), ("!abc", ["!abc"]), (" !abc", [" !", "abc"]),
    ("（abc", ["（abc"]), ("中1文", ["中", "1", "文"]), ("x.\r\n\r\ny", ["x", ".\r\n\r\n", "y"]),
    ("\0\0a\0", ["\0", "\0a", "\0"]), ("々一", ["々", "一"]), ("かな漢字ー", ["かな漢字ー"]), ("123", ["1", "2", "3"]),
])
def test_text_is_cut_as_described(text, pieces):
    if text == "（abc":
        pieces = ["（", "abc"]
    assert T.pre_tokenize(text) == pieces


def test_any_bytes_survive_a_round_trip(tokenizer):
    rng = random.Random(1)
    for _ in range(50):
        text = "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(1, 0xD800), rng.randrange(0x10000, 0x20000))))
                       for _ in range(rng.randrange(1, 40)))
        assert tokenizer.decode(tokenizer.encode_plain(text)) == text


def test_every_byte_has_a_token(tokenizer):
    assert all(symbol in tokenizer.vocab for symbol in T.ALPHABET)
    assert tokenizer.vocab_size == 2048


def test_added_tokens_are_matched_in_prompts_only(tokenizer):
    text = f"a{T.USER}b｜DSML｜｜DSML｜"
    assert tokenizer.encode(text).count(tokenizer.token_id(T.USER)) == 1
    assert max(tokenizer.encode_plain(text)) < tokenizer.token_id(T.SYSTEM)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([0, *tokenizer.encode("x"), 1], skip_special=True) == "x"


def test_ids_follow_the_official_order(tokenizer):
    assert [tokenizer.token_id(s) for s in (T.BOS, T.EOS, T.PAD)] == [0, 1, 2]


def test_training_merges_the_most_frequent_pair_first():
    assert T.train_merges(["ababab ab"], 2)[0] == ("a", "b")


def test_greedy_bpe_equals_merging_in_rank_order(tokenizer):
    """Against the definition: apply every merge, in rank order, wherever it occurs."""
    data = json.loads(json.dumps({"vocab": tokenizer.vocab}))
    merges = sorted(tokenizer._rank, key=tokenizer._rank.get)
    for word in (" Remember", " password", "convert", " qxzv", "Millrace"):
        parts = [T.ALPHABET[b] for b in word.encode()]
        for left, right in merges:
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == (left, right):
                    parts[i:i + 2] = [left + right]
                i += 1
        assert tokenizer.encode_plain(word) == [data["vocab"][p] for p in parts]
