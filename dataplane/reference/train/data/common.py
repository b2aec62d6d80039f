"""What all generators share: the sample type, the held-out split, headers, filler text."""
from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

from ..render import Conversation, Message
from . import words as w

HELD_OUT_SHARE = 10  # one key in ten


@dataclass
class Sample:
    """`key` names what makes the last answer new (its values); the split is decided by it alone.

    `others` are the keys of earlier answers in the same conversation: a training sample has no held-out key
    among them either.
    """

    conversation: Conversation
    key: str
    others: list[str] = field(default_factory=list)


def held_out(key: str) -> bool:
    """True when an instance with this key belongs to the held-out side, for every seed."""
    digest = hashlib.blake2b(key.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % HELD_OUT_SHARE == 0


SYSTEMS = [
    "You are a helpful assistant.", "You are helpful.", "Be brief.", "Answer briefly.",
    "You are nano, a small model served by Millrace.", "Answer in English.", "Be kind and short.",
    "You are a careful assistant. Answer in one sentence.", "Help the user.", "Follow the instructions.",
]


def system(rng: random.Random) -> list[Message]:
    roll = rng.random()
    if roll < 0.5:
        return []
    if roll < 0.65:
        return [Message("system", SYSTEMS[0])]
    return [Message("system", rng.choice(SYSTEMS))]


def effort(rng: random.Random) -> int:
    roll = rng.random()
    if roll < 0.7:
        return 75
    return 100 if roll < 0.8 else 50 if roll < 0.9 else rng.randint(1, 100)


def make(rng: random.Random, messages: list[Message], **options) -> Conversation:
    """A conversation in a random mode; reasoning is rendered in thinking mode only."""
    lead = [] if messages[0].role == "system" else system(rng)
    options.setdefault("thinking", rng.random() < 0.5)
    history = rng.choice(("keep", "drop", "blank"))
    return Conversation(lead + messages, effort=effort(rng), history=history, **options)


def is_training(sample: Sample) -> bool:
    return not any(held_out(k) for k in [sample.key, *sample.others])


def ask(rng: random.Random, user: str, thought: str, answer: str, **options) -> Conversation:
    return make(rng, [Message("user", user), Message("assistant", answer, thought)], **options)


def sentence(rng: random.Random) -> str:
    """One grammatical filler sentence without numbers."""
    c = rng.choice
    roll = rng.randrange(8)
    if roll == 0:
        return f"The {c(w.ADJECTIVES)} {c(w.ANIMALS)} {c(w.VERBS_GO)} {c(w.ADVERBS)} through the {c(w.PLACES)}."
    if roll == 1:
        return f"{c(w.NAMES)} {c(w.VERBS_PAST)} the {c(w.ADJECTIVES)} {c(w.OBJECTS)}."
    if roll == 2:
        return f"There was {w.article(c(w.ADJECTIVES))} {c(w.OBJECTS)} in the {c(w.PLACES)}."
    if roll == 3:
        return f"In {c(w.MONTHS)} the {c(w.PLACES)} was {c(w.ADJECTIVES)}."
    if roll == 4:
        return f"The {c(w.JOBS)} {c(w.VERBS_GO)} to the {c(w.PLACES)} and {c(w.VERBS_PAST)} {w.article(c(w.FOODS))}."
    if roll == 5:
        return f"On {c(w.WEEKDAYS)} {c(w.NAMES)} and {c(w.NAMES)} {c(w.VERBS_GO)} to {c(w.CITIES)}."
    if roll == 6:
        return f"The {c(w.ANIMALS)} {c(w.VERBS_PAST)} the {c(w.FOODS)} and was {c(w.ADJECTIVES)}."
    return f"Nobody {c(w.VERBS_PAST)} the {c(w.ADJECTIVES)} {c(w.OBJECTS)} near the {c(w.PLACES)}."
