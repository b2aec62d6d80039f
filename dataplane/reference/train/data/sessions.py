"""Conversations that mix short requests, so that no kind of turn is tied to a kind of conversation."""
from __future__ import annotations

import random
from typing import Callable

from ..render import Message
from . import chat, recall, tasks
from .common import Sample, make

# name: (generator, weight)
_TURNS: dict[str, tuple[Callable[[random.Random], Sample], int]] = {
    "arithmetic": (tasks.arithmetic, 40), "strings": (tasks.strings, 16), "echo": (tasks.echo, 10),
    "json": (tasks.json_object, 14), "lists": (tasks.lists, 6), "identity": (chat.identity, 4),
    "small_talk": (chat.small_talk, 3), "knowledge": (chat.knowledge, 6), "greeting": (chat.greeting, 2),
    "story": (chat.story, 3), "fact": (None, 8),
}


def session(rng: random.Random, last: str = "") -> Sample:
    """Up to seven turns, each a request of its own or a fact to keep, then questions about some of the facts.

    `last` names the kind of the last turn, which then stands in place of the questions. All turns think or none
    does. A subject that comes again is left out, so there may be fewer turns than were drawn.
    """
    thinking = rng.random() < 0.55
    names, weights = list(_TURNS), [weight for _, weight in _TURNS.values()]
    kinds = rng.choices(names, weights, k=rng.randint(1 if last else 2, 7)) + ([last] if last else [])
    messages: list[Message] = []
    keys: list[str] = []
    facts: list[recall.Fact] = []
    for kind in kinds:
        if kind == "fact":
            new = recall.fact(rng)
            if all(new.subject != f.subject for f in facts):
                facts.append(new)
                messages += [Message("user", new.statement), recall.NOTED]
            continue
        turn = _turn(rng, kind, thinking)
        messages += turn.conversation.messages[-2:]
        keys.append(turn.key)
    if not last:
        for f in rng.sample(facts, rng.randint(0, len(facts))):
            messages += [Message("user", f.question), Message("assistant", f.answer, f"The user said {f.value}.")]
            keys.append(recall.key(f))
    if not keys:
        keys.append("train")
    return Sample(make(rng, messages, thinking=thinking), keys[-1], keys[:-1])


def _turn(rng: random.Random, kind: str, thinking: bool) -> Sample:
    """One single-turn sample of a kind, written for the session's mode (the wording may depend on it)."""
    while True:
        drawn = _TURNS[kind][0](rng)
        if drawn.conversation.thinking == thinking and not drawn.conversation.json_object:
            return drawn
