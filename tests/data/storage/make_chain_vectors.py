"""Vectors of storage/kv/hash_chain.h, computed from its drawing with hashlib and hmac alone.

    /usr/bin/python3 tests/data/storage/make_chain_vectors.py > tests/data/storage/chain_vectors.json
    /usr/bin/python3 tests/data/storage/make_chain_vectors.py --check tests/data/storage/chain_vectors.json
"""
import hashlib
import hmac
import json
import struct
import sys

BLOCK_TOKENS = 128
FORMAT_VERSION = 1


def framed(field):
    return struct.pack("<I", len(field)) + field


def account_salt(secret, account, user_id):
    message = framed(account.encode()) + framed((user_id or "").encode())
    return hmac.new(secret, message, hashlib.sha256).digest()


def chain_root(artifact_digest, layout_id, salt):
    encoded = bytes([FORMAT_VERSION]) + framed(artifact_digest) + framed(layout_id.encode()) + framed(salt)
    return hashlib.sha256(encoded).digest()


def chain_keys(root, tokens, images):
    keys, last = [], root
    for block in range(len(tokens) // BLOCK_TOKENS):
        first = block * BLOCK_TOKENS
        content = b"".join(struct.pack("<i", token) for token in tokens[first:first + BLOCK_TOKENS])
        for position, digest in images:
            if first <= position < first + BLOCK_TOKENS:
                content += digest
        last = hashlib.sha256(last + content).digest()
        keys.append(last)
    return keys


def artifact(weight_byte=0, tokenizer="tokenizer"):
    """Stands for what the recipe computes: any digest would do."""
    shard = hashlib.sha256(bytes([weight_byte]) + bytes(1000)).digest()
    return hashlib.sha256(b"config" + tokenizer.encode() + shard).digest()


def tokens_of(count, start=1):
    """A walk over the vocabulary that needs no generator to agree on; the last id is the largest there is."""
    tokens, value = [], start
    for _ in range(count):
        value = (value * 1103515245 + 12345) % 2147483648
        tokens.append(value % 129280)
    if count:
        tokens[-1] = 2147483647
    return tokens


def case(name, secret=b"cluster secret", account="acme", user_id=None, artifact_digest=None, layout_id="v41-fp4-1",
         tokens=None, images=()):
    digest = artifact_digest or artifact()
    tokens = tokens_of(300) if tokens is None else tokens
    salt = account_salt(secret, account, user_id)
    root = chain_root(digest, layout_id, salt)
    return {
        "name": name,
        "cluster_secret": secret.hex(),
        "account": account,
        "user_id": user_id,
        "artifact_digest": digest.hex(),
        "layout_id": layout_id,
        "tokens": tokens,
        "images": [{"first_token": position, "digest": image.hex()} for position, image in images],
        "salt": salt.hex(),
        "root": root.hex(),
        "keys": [key.hex() for key in chain_keys(root, tokens, images)],
    }


def vectors():
    first, second = hashlib.sha256(b"first image").digest(), hashlib.sha256(b"second image").digest()
    changed = tokens_of(300)
    changed[130] += 1
    return [
        case("base"),
        case("absent user is the empty one", user_id=""),
        case("another account", account="acmf"),
        case("another user", user_id="u1"),
        case("another cluster", secret=b"cluster secre7"),
        case("framing: a + bc", account="a", user_id="bc"),
        case("framing: ab + c", account="ab", user_id="c"),
        case("framing: abc + nothing", account="abc"),
        case("one weight byte", artifact_digest=artifact(weight_byte=1)),
        case("another tokenizer", artifact_digest=artifact(tokenizer="tokenizes")),
        case("another layout", layout_id="v41-fp4-2"),
        case("no layout name", layout_id=""),
        case("beyond ASCII", account="\u00fcn\u00ef\u4e2d", user_id="\U0001f600"),
        case("no secret", secret=b""),
        case("long secret", secret=bytes(range(200))),
        case("nothing", tokens=[]),
        case("127 tokens", tokens=tokens_of(127)),
        case("128 tokens", tokens=tokens_of(128)),
        case("129 tokens", tokens=tokens_of(129)),
        case("255 tokens", tokens=tokens_of(255)),
        case("256 tokens", tokens=tokens_of(256)),
        case("257 tokens", tokens=tokens_of(257)),
        case("a changed token in the second block", tokens=changed),
        case("an image in the first block", images=[(0, first)]),
        case("the same image in the second block", images=[(128, first)]),
        case("an image at the last token of a block", images=[(127, first)]),
        case("two images in a block", images=[(3, first), (90, second)]),
        case("the two images in the other order", images=[(3, second), (90, first)]),
        case("an image behind the last full block", images=[(256, first)]),
    ]


def main(arguments):
    text = "[\n" + ",\n".join(json.dumps(vector) for vector in vectors()) + "\n]\n"
    if not arguments:
        sys.stdout.write(text)
        return 0
    if len(arguments) == 2 and arguments[0] == "--check":
        with open(arguments[1], encoding="utf-8") as file:
            if file.read() == text:
                return 0
        print(f"{arguments[1]} is not what this script computes", file=sys.stderr)
        return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
