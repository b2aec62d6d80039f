"""What the tests of the module share: nano's tokenizer, fixtures, and outputs as tokens."""

import json
import os
from pathlib import Path

import millrace_recipe as mr
import pytest

ROOT = Path(os.environ["MILLRACE_SOURCE_DIR"])
FIXTURES = ROOT / "tests/data/encoding"


def read(name):
    # Not read_text(), which would turn "\r\n" into "\n".
    return (FIXTURES / name).read_bytes().decode()


def read_lines(name):
    return [json.loads(line) for line in read(name).splitlines() if line]


@pytest.fixture(scope="session")
def tokenizer():
    return mr.Tokenizer(str(ROOT / "deploy/models/nano/tokenizer.json"))


@pytest.fixture(scope="session")
def recipe(tokenizer):
    return mr.Recipe(tokenizer)


@pytest.fixture(scope="session")
def byte_ids(tokenizer):
    """A function from an output to tokens of which each ordinary one is one byte."""
    single = {}
    for id in range(tokenizer.id_bound):
        if len(tokenizer.token_bytes(id)) == 1:
            single[tokenizer.token_bytes(id)[0]] = id

    def split(text):
        ids = []
        for id in tokenizer.encode(text, special=True):
            spelling = tokenizer.token_bytes(id)
            if tokenizer.control_token(spelling.decode(errors="replace")) == id:
                ids.append(id)
            else:
                ids.extend(single[byte] for byte in spelling)
        return ids

    return split
