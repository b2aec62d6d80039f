"""Byte-level BPE in Hugging Face `tokenizer.json` form: trainer, encoder, decoder.

The file has the same structure as DeepSeek's (three isolating splits, then ByteLevel, no
normaliser) with one difference: digits are split one by one (`\\p{N}` instead of `\\p{N}{1,3}`),
because a model of this size computes digit by digit. Ids: 0..2 begin/end/pad, then the 256 bytes,
then the merges in rank order, then the added tokens, 2048 in all.

This is the slow, obvious implementation; servers use their own and are tested against files
written from here.
"""
from __future__ import annotations

import collections
import heapq
import json

import regex

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
SYSTEM = "<｜System｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
THINK_END = "</think>"
DSML = "｜DSML｜"
REMINDER = "<｜latest_reminder｜>"
IMAGE = "<｜deepseek_image｜>"

# (spelling, special, normalized) as in DeepSeek's table: `special` only says whether
# skip_special_tokens drops the token when decoding.
_FIRST = [(BOS, True, False), (EOS, True, False), (PAD, True, False)]
_LAST = [
    (SYSTEM, False, True),
    ("<｜fim▁hole｜>", False, True),
    ("<｜fim▁begin｜>", False, True),
    ("<｜fim▁end｜>", False, True),
    (USER, False, True),
    (ASSISTANT, False, True),
    (THINK, False, True),
    (THINK_END, False, True),
    (DSML, False, True),
    (REMINDER, False, True),
    ("<｜action｜>", False, True),
    ("<｜query｜>", False, True),
    ("<｜authority｜>", False, True),
    ("<｜domain｜>", False, True),
    ("<｜title｜>", False, True),
    ("<｜read_url｜>", False, True),
    (IMAGE, False, False),
]

DIGIT_PATTERN = r"\p{N}"
CJK_PATTERN = r"[一-龥぀-ゟ゠-ヿ]+"
WORD_PATTERN = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
_SPLITS = [regex.compile(p) for p in (DIGIT_PATTERN, CJK_PATTERN, WORD_PATTERN)]


def _byte_alphabet() -> list[str]:
    """The printable stand-in of each byte value (GPT-2's table)."""
    keep = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {b: chr(b) for b in keep}
    spare = 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + spare)
            spare += 1
    return [table[b] for b in range(256)]


ALPHABET = _byte_alphabet()
_BYTE_OF = {c: b for b, c in enumerate(ALPHABET)}


def pre_tokenize(text: str) -> list[str]:
    """Cuts text into the pieces that merges never cross."""
    pieces = [text]
    for pattern in _SPLITS:
        cut: list[str] = []
        for piece in pieces:
            end = 0
            for match in pattern.finditer(piece):
                if match.start() > end:
                    cut.append(piece[end:match.start()])
                if match.end() > match.start():
                    cut.append(match.group())
                end = match.end()
            if end < len(piece):
                cut.append(piece[end:])
        pieces = cut
    return pieces


def _to_alphabet(piece: str) -> str:
    return "".join(ALPHABET[b] for b in piece.encode("utf-8"))


class Tokenizer:
    """Encoder and decoder over one `tokenizer.json` value."""

    def __init__(self, data: dict):
        self.vocab: dict[str, int] = dict(data["model"]["vocab"])
        self._rank = {tuple(m.split(" ")): r for r, m in enumerate(data["model"]["merges"])}
        self.added = {t["content"]: t["id"] for t in data["added_tokens"]}
        self._special = {t["id"] for t in data["added_tokens"] if t["special"]}
        self._text_of = {i: s for s, i in self.vocab.items()}
        self._added_of = {i: s for s, i in self.added.items()}
        spellings = sorted(self.added, key=len, reverse=True)
        self._added_pattern = regex.compile("|".join(regex.escape(s) for s in spellings))
        self._cache: dict[str, tuple[int, ...]] = {}

    @classmethod
    def load(cls, path) -> "Tokenizer":
        with open(path, encoding="utf-8") as f:
            return cls(json.load(f))

    @property
    def vocab_size(self) -> int:
        return max(max(self.vocab.values()), max(self.added.values())) + 1

    def token_id(self, spelling: str) -> int:
        return self.added[spelling]

    def raw_token(self, token: int) -> str:
        """The vocabulary string of an id (byte alphabet for ordinary tokens)."""
        return self._added_of.get(token) or self._text_of[token]

    def _bpe(self, piece: str) -> tuple[int, ...]:
        known = self._cache.get(piece)
        if known is not None:
            return known
        parts = list(_to_alphabet(piece))
        while len(parts) > 1:
            ranks = [self._rank.get(pair, -1) for pair in zip(parts, parts[1:])]
            best = min((r for r in ranks if r >= 0), default=-1)
            if best < 0:
                break
            merged, i = [], 0
            while i < len(parts):
                if i + 1 < len(parts) and self._rank.get((parts[i], parts[i + 1]), -1) == best:
                    merged.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    merged.append(parts[i])
                    i += 1
            parts = merged
        ids = tuple(self.vocab[p] for p in parts)
        if len(self._cache) < 200_000:
            self._cache[piece] = ids
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Encodes request text: spellings of added tokens stay ordinary text."""
        return [i for piece in pre_tokenize(text) for i in self._bpe(piece)]

    def encode(self, text: str) -> list[int]:
        """Encodes a rendered prompt: added tokens are matched first, longest leftmost."""
        ids: list[int] = []
        end = 0
        for match in self._added_pattern.finditer(text):
            ids += self.encode_plain(text[end:match.start()])
            ids.append(self.added[match.group()])
            end = match.end()
        return ids + self.encode_plain(text[end:])

    def decode(self, ids, skip_special: bool = False) -> str:
        out = bytearray()
        for i in ids:
            if i in self._added_of:
                if not (skip_special and i in self._special):
                    out += self._added_of[i].encode("utf-8")
            else:
                out += bytes(_BYTE_OF[c] for c in self._text_of[i])
        return out.decode("utf-8", errors="replace")


def train_merges(texts, merge_count: int) -> list[tuple[str, str]]:
    """Learns merges from texts: most frequent pair first, ties to the smaller pair of strings."""
    counts = collections.Counter(p for text in texts for p in pre_tokenize(text))
    words = [[list(_to_alphabet(p)), n] for p, n in sorted(counts.items())]
    pair_count: collections.Counter = collections.Counter()
    where: dict[tuple[str, str], set[int]] = collections.defaultdict(set)
    for w, (parts, n) in enumerate(words):
        for pair in zip(parts, parts[1:]):
            pair_count[pair] += n
            where[pair].add(w)
    heap = [(-n, pair) for pair, n in pair_count.items()]
    heapq.heapify(heap)
    merges: list[tuple[str, str]] = []
    while len(merges) < merge_count and heap:
        negative, pair = heapq.heappop(heap)
        if pair_count[pair] != -negative:
            if pair_count[pair] > 0:
                heapq.heappush(heap, (-pair_count[pair], pair))
            continue
        if negative == 0:
            break
        merges.append(pair)
        touched: set[tuple[str, str]] = set()
        for w in sorted(where.pop(pair)):
            parts, n = words[w]
            new, i = [], 0
            while i < len(parts):
                if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
                    new.append(parts[i] + parts[i + 1])
                    i += 2
                else:
                    new.append(parts[i])
                    i += 1
            if len(new) == len(parts):
                continue
            for old in zip(parts, parts[1:]):
                pair_count[old] -= n
            for fresh in zip(new, new[1:]):
                pair_count[fresh] += n
                where[fresh].add(w)
                touched.add(fresh)
            words[w][0] = new
        for fresh in touched:
            heapq.heappush(heap, (-pair_count[fresh], fresh))
    return merges


def _added_entry(token_id: int, content: str, special: bool, normalized: bool) -> dict:
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": normalized, "special": special}


def _split(pattern: str) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def build(texts, vocab_size: int = 2048) -> dict:
    """Trains a tokenizer on texts; returns the `tokenizer.json` value."""
    merge_count = vocab_size - len(_FIRST) - 256 - len(_LAST)
    vocab: dict[str, int] = {s: i for i, (s, _, _) in enumerate(_FIRST)}
    for symbol in sorted(ALPHABET):
        vocab[symbol] = len(vocab)
    merges: list[tuple[str, str]] = []
    # Two merge paths can spell one string; it gets one id, so a few spare merges are asked for.
    for left, right in train_merges(texts, merge_count + 64):
        if len(merges) == merge_count:
            break
        if left + right in vocab:
            continue
        vocab[left + right] = len(vocab)
        merges.append((left, right))
    if len(merges) != merge_count:
        raise ValueError(f"corpus yields {len(merges)} merges, {merge_count} needed")
    added = [_added_entry(i, *row) for i, row in enumerate(_FIRST)]
    added += [_added_entry(len(vocab) + i, *row) for i, row in enumerate(_LAST)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            _split(DIGIT_PATTERN), _split(CJK_PATTERN), _split(WORD_PATTERN), byte_level]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                           "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                  "merges": [f"{a} {b}" for a, b in merges]},
    }
