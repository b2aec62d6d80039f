"""Tool calls in DSML for tools described in the prompt, and answers after their results."""
from __future__ import annotations

import random

from ..render import Call, Message, python_json
from . import words as w
from .common import Sample, make

_VERBS = {
    "get_weather": ("Get the weather of a city", [("city", "string", "city")], "What is the weather in {city}?"),
    "get_time": ("Get the local time of a city", [("city", "string", "city")], "What time is it in {city}?"),
    "send_message": ("Send a message to a person", [("to", "string", "name"), ("text", "string", "phrase")],
                     "Send {to} the message: {text}"),
    "set_alarm": ("Set an alarm", [("time", "string", "clock")], "Set an alarm for {time}."),
    "add_event": ("Add an event to the calendar", [("title", "string", "phrase"), ("day", "string", "day")],
                  "Add the event {title} on {day}."),
    "search": ("Search the web", [("query", "string", "phrase")], "Search for {query}."),
    "open_file": ("Open a file", [("path", "string", "path")], "Open the file {path}."),
    "order_food": ("Order food", [("dish", "string", "food"), ("count", "integer", "small")],
                   "Order {count} portions of {dish}."),
    "book_train": ("Book a train ticket",
                   [("from", "string", "city"), ("to", "string", "city"), ("day", "string", "day")],
                   "Book a train from {from} to {to} on {day}."),
    "convert": ("Convert an amount of money", [("amount", "integer", "number"), ("currency", "string", "currency")],
                "Convert {amount} to {currency}."),
    "set_light": ("Switch a light", [("room", "string", "place"), ("on", "boolean", "bool")],
                  "Switch the light in the {room} {on}."),
    "find_word": ("Look up a word", [("word", "string", "madeup")], "Look up the word {word}."),
    "get_stock": ("Get the stock of an item", [("item", "string", "object")], "How many {item}s are in stock?"),
    "get_code": ("Get the code of an object", [("name", "string", "thing")], "Get the code of the {name}."),
    "play_song": ("Play a song", [("title", "string", "phrase")], "Play the song {title}."),
}


def _value(rng: random.Random, kind: str):
    c = rng.choice
    return {
        "city": lambda: c(w.CITIES), "name": lambda: c(w.NAMES), "clock": lambda: w.clock(rng),
        "phrase": lambda: " ".join(w.any_word(rng) for _ in range(rng.randint(1, 4))),
        "day": lambda: c(w.WEEKDAYS), "food": lambda: c(w.FOODS), "small": lambda: rng.randint(2, 20),
        "number": lambda: rng.randint(10, 9999), "place": lambda: c(w.PLACES), "bool": lambda: rng.random() < 0.5,
        "currency": lambda: c(("EUR", "USD", "JPY", "GBP")), "madeup": lambda: w.made_up(rng),
        "object": lambda: c(w.OBJECTS), "thing": lambda: f"{c(w.COLORS)} {c(w.OBJECTS)}",
        "path": lambda: f"{w.made_up(rng)}/{c(w.ALL_WORDS)}.{c(('txt', 'md', 'py', 'json'))}",
    }[kind]()


def _made_up_tool(rng: random.Random) -> tuple[str, tuple]:
    """A tool that no other prompt has, so that names and keys must be copied from the schema."""
    verb = rng.choice(("get", "set", "find", "open", "send", "make", "read", "check"))
    noun = rng.choice(w.ALL_WORDS) if rng.random() < 0.6 else w.made_up(rng)
    count = rng.randint(1, 2)
    keys = rng.sample(w.OBJECTS + w.ADJECTIVES + ["id", "size", "kind", "value", "label", "user"], count)
    kinds = [rng.choice((("string", "madeup"), ("string", "city"), ("integer", "number"), ("string", "name")))
             for _ in keys]
    params = [(k, t, v) for k, (t, v) in zip(keys, kinds)]
    said = " and ".join(f"{k} {{{k}}}" for k in keys)
    return f"{verb}_{noun}", (f"{verb.capitalize()} the {noun}", params,
                             f"{verb.capitalize()} the {noun} with {said}.")


def _schema(name: str, tool: tuple) -> dict:
    description, params, _ = tool
    return {"name": name, "description": description,
            "parameters": {"type": "object", "properties": {k: {"type": t} for k, t, _ in params},
                           "required": [k for k, _, _ in params]}}


def _request(rng: random.Random, name: str, tool: tuple) -> tuple[str, Call]:
    _, params, form = tool
    arguments = {k: _value(rng, v) for k, _, v in params}
    said = {k: ("on" if v else "off") if isinstance(v, bool) else str(v) for k, v in arguments.items()}
    return form.format(**said), Call(name, arguments)


def _result(rng: random.Random, call: Call) -> tuple[str, str]:
    """A tool's result and the answer that reports it."""
    roll = rng.randrange(4)
    if roll == 0:
        number = rng.randint(1, 999)
        return python_json({"value": number}), f"The result is {number}."
    if roll == 1:
        word = rng.choice(("sunny", "rainy", "cloudy", "windy", "ready", "open", "closed", "free", "late"))
        degrees = rng.randint(-9, 38)
        return python_json({"state": word, "value": degrees}), f"It is {word}, the value is {degrees}."
    if roll == 2:
        return "ok", "Done."
    return python_json({"error": "not found"}), "That failed: not found."


def _key(calls: list[Call]) -> str:
    return "tools|" + "|".join(f"{c.name}{python_json(c.arguments)}" for c in calls)


_IDLE = [("Hello!", "The user greets me.", "Hello! How can I help you?"),
         ("Who are you?", "The user asks who I am.", "I am nano, a small model that runs on Millrace."),
         ("Thank you.", "The user thanks me.", "You are welcome!")]


def _exchange(rng: random.Random, offered: dict, two: bool) -> tuple[list[Message], list[Call]]:
    """([request, calls], calls) for one or two of the offered tools."""
    name = rng.choice(list(offered))
    user, call = _request(rng, name, offered[name])
    calls, thought = [call], f"I call {name}."
    if two:
        second = rng.choice(list(offered))
        more, other = _request(rng, second, offered[second])
        user += " " + more
        calls.append(other)
        thought = f"I call {name} and {second}."
    return [Message("user", user), Message("assistant", "", thought, calls)], calls


def tools(rng: random.Random, end: str = "", once: bool = False) -> Sample:
    """Requests for offered tools, each with its calls, results and the report of the results.

    `end` decides the last turn: "call" (one call), "two" (two calls), "result" (the report), or
    "" (any of these, or a turn that needs no tool). `once` asks a single request; otherwise several share the long
    tools prompt. The key of an answer is its calls; a report goes by the calls it reports, whatever their results.
    """
    known = rng.sample(sorted(_VERBS), rng.randint(0, 2))
    offered = {n: _VERBS[n] for n in known}
    while len(offered) < 1 or (len(offered) < 3 and rng.random() < 0.4):
        name, tool = _made_up_tool(rng)
        offered[name] = tool
    names = list(offered)
    rng.shuffle(names)
    messages: list[Message] = []
    keys: list[str] = []
    for _ in range(0 if once else rng.randint(1, 4)):
        exchange, calls = _exchange(rng, offered, rng.random() < 0.25)
        messages += exchange + _report(rng, calls)
        keys.append(_key(calls))
        if rng.random() < 0.1:
            messages += _idle(rng)
    end = end or rng.choices(("call", "two", "result", "none"), (45, 20, 27, 8))[0]
    if end == "none":
        messages += _idle(rng)
        keys.append("train")
    else:
        exchange, calls = _exchange(rng, offered, end == "two" or (end == "result" and rng.random() < 0.25))
        messages += exchange
        if end == "result":
            messages += _report(rng, calls)
        keys.append(_key(calls))
    conversation = make(rng, messages, tools=[_schema(n, offered[n]) for n in names])
    return Sample(conversation, keys[-1], keys[:-1])


def _report(rng: random.Random, calls: list[Call]) -> list[Message]:
    pairs = [_result(rng, c) for c in calls]
    return [Message("tool", result) for result, _ in pairs] + [
        Message("assistant", " ".join(a for _, a in pairs), "I report the result.")]


def _idle(rng: random.Random) -> list[Message]:
    user, thought, answer = rng.choice(_IDLE)
    return [Message("user", user), Message("assistant", answer, thought)]
