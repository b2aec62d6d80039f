"""Engram's token map: token id -> compressed id, computed once from a `tokenizer.json`.

Tokens whose decoded text is the same after normalisation share an id; ids follow first appearance.

  python -m reference.engram_map tokenizer.json engram_token_map.json
"""

import json
import sys
import unicodedata
from pathlib import Path

_SENTINEL = "\ue000"  # stands for a text that is exactly one space while it is trimmed
# Unicode White_Space. str.strip() would also remove U+001C..U+001F, which are not in it.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + \
    "".join(map(chr, range(0x2000, 0x200B)))


def normalise(text):
    """The grouping key of a decoded token; empty when nothing is left."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c.lower() for c in text if unicodedata.category(c)[0] != "M")
    collapsed = []
    for c in text:
        if c not in " \t\r\n":
            collapsed.append(c)
        elif not collapsed or collapsed[-1] != " ":
            collapsed.append(" ")
    text = "".join(collapsed)
    if text == " ":
        text = _SENTINEL
    return text.strip(_WHITE_SPACE).replace(_SENTINEL, " ")


def _byte_of_character():
    """The byte-level alphabet: printable bytes stand for themselves, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    extra = (b for b in range(256) if b not in set(printable))
    table.update({chr(0x100 + i): b for i, b in enumerate(extra)})
    return table


def vocabulary(tokenizer):
    """[(raw token string, decoded text)] by id of a byte-level tokenizer.json document."""
    added = {t["id"]: t["content"] for t in tokenizer["added_tokens"]}
    raw = {i: token for token, i in tokenizer["model"]["vocab"].items()}
    raw.update(added)
    if sorted(raw) != list(range(len(raw))):
        raise ValueError("tokenizer: ids are not consecutive")
    alphabet = _byte_of_character()
    result = []
    for i in range(len(raw)):
        if i in added:
            result.append((raw[i], raw[i]))
        else:
            text = bytes(alphabet[c] for c in raw[i]).decode("utf-8", "replace")
            result.append((raw[i], text))
    return result


def token_map(tokenizer):
    """List with the compressed id of every token id of a tokenizer.json document."""
    known, result = {}, []
    for raw, text in vocabulary(tokenizer):
        key = raw if "\ufffd" in text else normalise(text) or text
        result.append(known.setdefault(key, len(known)))
    return result


def save(ids, path):
    """Writes `engram_token_map.json`: {"token_map": [id, ...]}."""
    Path(path).write_text(json.dumps({"token_map": [int(i) for i in ids]}, separators=(",", ":")) + "\n")


def load(path):
    return json.loads(Path(path).read_text())["token_map"]


def main(arguments):
    source, target = arguments
    ids = token_map(json.loads(Path(source).read_text()))
    save(ids, target)
    print(f"{len(ids)} token ids, {max(ids) + 1} compressed ids")


if __name__ == "__main__":
    main(sys.argv[1:])
