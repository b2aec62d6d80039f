"""Engram's token map: ids whose text is the same after normalisation share one compressed id."""
from __future__ import annotations

import unicodedata

import numpy as np
import regex

from .tokenizer import PAD, Tokenizer

_SPACE = "\ue000"  # protects a string that is exactly one space from the trim


def normalised(text: str) -> str:
    """NFKC, NFD, no accents, lower case, runs of blanks to one space, trimmed."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c for c in text if unicodedata.category(c) != "Mn").lower()
    text = regex.sub(r"[ \t\r\n]+", " ", text)
    if text == " ":
        text = _SPACE
    return text.strip().replace(_SPACE, " ")


def token_map(tokenizer: Tokenizer) -> np.ndarray:
    """[vocab] int64: compressed id of every token id, in order of first appearance."""
    known: dict[str, int] = {}
    out = np.zeros(tokenizer.vocab_size, np.int64)
    for token in range(tokenizer.vocab_size):
        text = tokenizer.decode([token])
        key = tokenizer.raw_token(token) if "\ufffd" in text else (normalised(text) or text)
        out[token] = known.setdefault(key, len(known))
    if out[tokenizer.token_id(PAD)] != 2:
        raise ValueError("the padding token must map to compressed id 2")
    return out
