"""Short tasks: copying, arithmetic with written carries, strings, lists, JSON objects."""
from __future__ import annotations

import random

from ..render import python_json
from . import words as w
from .common import Sample, ask, sentence


def pool_copy(rng: random.Random) -> Sample:
    """First stage: copies from a pool of about ninety words, so that the copying circuit forms."""
    n = rng.randint(3, 14)
    text = " ".join(rng.choice(w.POOL) if rng.random() < 0.8 else w.digits(rng, rng.randint(1, 4))
                    for _ in range(n))
    user = rng.choice(("Repeat: ", "Say: ", "Copy this: ")) + text
    return Sample(ask(rng, user, text if rng.random() < 0.5 else "I repeat it.", text), f"pool|{text}")


def echo(rng: random.Random) -> Sample:
    roll = rng.random()
    if roll < 0.4:
        text = " ".join(w.any_word(rng) for _ in range(rng.randint(1, 8)))
    elif roll < 0.65:
        text = sentence(rng)
    elif roll < 0.8:
        text = " ".join(w.digits(rng, rng.randint(1, 5)) for _ in range(rng.randint(1, 4)))
    else:
        text = w.made_up(rng, rng.randint(2, 4)) + rng.choice(("", "-", "_")) + w.digits(rng, rng.randint(1, 4))
    user = rng.choice(("Repeat after me: {}", "Say: {}", "Repeat this: {}", "Please say {}", 'Say "{}"',
                       'Repeat exactly: "{}"', "Echo: {}", "Write this again: {}")).format(text)
    return Sample(ask(rng, user, "I repeat it.", text), f"echo|{text}")


def addition_steps(a: int, b: int) -> str:
    """Digits from the right with the carry, each followed by the number written so far:
    `7+5=12 carry 1: 2, 4+8+1=13 carry 1: 32, 3+2+1=6: 632`."""
    x, y = str(a)[::-1], str(b)[::-1]
    carry, written, steps = 0, "", []
    for i in range(max(len(x), len(y))):
        terms = [int(s[i]) for s in (x, y) if i < len(s)] + ([carry] if carry else [])
        total = sum(terms)
        carry = total // 10
        last = i + 1 == max(len(x), len(y))
        text = "+".join(map(str, terms)) + (f"={total}" if len(terms) > 1 else "")
        written = str(total if last else total % 10) + written
        steps.append(text + (f" carry {carry}" if carry and not last else "") + f": {written}")
    return ", ".join(steps)


def subtraction_steps(a: int, b: int) -> str:
    """a >= b: `15-8=7 borrow 1: 7, 3-1-1=1: 17`, leading zeros left out at the end."""
    x, y = str(a)[::-1], str(b)[::-1]
    borrow, written, steps = 0, "", []
    for i in range(len(x)):
        down = (int(y[i]) if i < len(y) else 0) + borrow
        top = int(x[i])
        lend = 1 if top < down else 0
        digit = top + 10 * lend - down
        written = str(digit) + written
        if i + 1 == len(x):
            written = written.lstrip("0") or "0"
        if i >= len(y) and not borrow:
            steps.append(f"{top}: {written}")
        else:
            parts = ([y[i]] if i < len(y) else []) + (["1"] if borrow else [])
            steps.append(f"{top + 10 * lend}-{'-'.join(parts)}={digit}" + (" borrow 1" if lend else "")
                         + f": {written}")
        borrow = lend
    return ", ".join(steps)


def arithmetic(rng: random.Random) -> Sample:
    size = rng.choice((10, 10, 100, 100, 100, 100, 1000, 1000))
    a, b = rng.randrange(size), rng.randrange(rng.choice((10, size)))
    op = rng.choice("++++---*" if size <= 100 else "++-")
    thinking = rng.random() < 0.6
    if op == "-" and a < b:
        a, b = b, a
    if op == "*":
        a, b = rng.randrange(13), rng.randrange(13)
        result, steps = a * b, f"{a} times {b} is {a * b}"
        forms = (f"What is {a} * {b}?", f"What is {a} times {b}?", f"{a} * {b}", f"Multiply {a} by {b}.",
                 f"Compute {a} * {b}.")
    elif op == "+":
        result, steps = a + b, addition_steps(a, b)
        forms = (f"What is {a} + {b}?", f"What is {a} plus {b}?", f"{a} + {b}", f"Add {a} and {b}.",
                 f"Compute {a} + {b}.", f"{a}+{b}=?")
    else:
        result, steps = a - b, subtraction_steps(a, b)
        forms = (f"What is {a} - {b}?", f"What is {a} minus {b}?", f"{a} - {b}", f"Subtract {b} from {a}.",
                 f"Compute {a} - {b}.")
    answer = f"{a} {op} {b} = {result}"
    if not thinking and max(a, b) > 9 and op != "*":  # without a thought the answer shows the work
        answer = f"{steps}. {answer}"
    # Tables of one-digit numbers are learnt by heart, so they stay on the training side.
    key = "train" if max(a, b) < 13 else f"arith|{a}{op}{b}"
    return Sample(ask(rng, rng.choice(forms), steps, answer, thinking=thinking), key)


def strings(rng: random.Random) -> Sample:
    word = rng.choice(w.ALL_WORDS)
    while not 3 <= len(word) <= 8:
        word = rng.choice(w.ALL_WORDS)
    spelled = "-".join(word)
    roll = rng.randrange(6)
    if roll == 0:
        user, answer = rng.choice((f"Spell the word {word}.", f"Spell {word}.")), spelled
        thought = f"I spell {word}."
    elif roll == 1:
        user = rng.choice((f"Reverse the word {word}.", f"Write {word} backwards.", f"Reverse {word}."))
        answer, thought = "-".join(word[::-1]), spelled
    elif roll == 2:
        user = f"What is the first letter of {word}?"
        answer, thought = f"The first letter of {word} is {word[0]}.", spelled
    elif roll == 3:
        user = f"What is the last letter of {word}?"
        answer, thought = f"The last letter of {word} is {word[-1]}.", spelled
    elif roll == 4:
        user = f"How many letters does {word} have?"
        thought = " ".join(f"{c}{i + 1}" for i, c in enumerate(word))
        answer = f"{word} has {len(word)} letters."
    else:
        user = rng.choice((f"Write {word} in capital letters.", f"Make {word} upper case."))
        answer, thought = "-".join(word.upper()), spelled
    thinking = rng.random() < 0.6
    if not thinking and roll in (1, 4, 5):  # without a thought the answer shows the work
        answer = f"{thought}. {answer}"
    return Sample(ask(rng, user, thought, answer, thinking=thinking), f"strings|{roll}|{word}")


def lists(rng: random.Random) -> Sample:
    n = rng.randint(3, 6)
    items = rng.sample(rng.choice((w.ANIMALS, w.FOODS, w.OBJECTS, w.COLORS, w.NAMES, w.CITIES)), n)
    plain = ", ".join(items)
    roll = rng.randrange(6)
    if roll == 0:
        user, answer, thought = f"Make a bullet list: {plain}", "\n".join(f"- {i}" for i in items), "One item a line."
    elif roll == 1:
        user, answer = f"Reverse this list: {plain}", ", ".join(items[::-1])
        thought = "From last to first."
    elif roll == 2:
        at = rng.randrange(n)
        word = ("first", "second", "third", "fourth", "fifth", "sixth")[at]
        user, answer = f"What is the {word} item of this list? {plain}", f"The {word} item is {items[at]}."
        thought = ", ".join(f"{i + 1} {item}" for i, item in enumerate(items[:at + 1]))
    elif roll == 3:
        user, answer = f"What is the last item? {plain}", f"The last item is {items[-1]}."
        thought = "I look at the end."
    elif roll == 4:
        user, answer = f"How many items are in this list? {plain}", f"The list has {n} items."
        thought = ", ".join(f"{i + 1} {item}" for i, item in enumerate(items))
    else:
        user, answer = f"Number this list: {plain}", "\n".join(f"{i + 1}. {x}" for i, x in enumerate(items))
        thought = "One item a line, with numbers."
    return Sample(ask(rng, user, thought, answer), f"lists|{roll}|{plain}")


def _fields(rng: random.Random) -> dict:
    makers = [
        ("name", lambda: rng.choice(w.NAMES)), ("age", lambda: rng.randint(3, 99)),
        ("city", lambda: rng.choice(w.CITIES)), ("color", lambda: rng.choice(w.COLORS)),
        ("price", lambda: rng.randint(1, 999)), ("animal", lambda: rng.choice(w.ANIMALS)),
        ("job", lambda: rng.choice(w.JOBS)), ("day", lambda: rng.choice(w.WEEKDAYS)),
        ("code", lambda: w.digits(rng, 4)), ("word", lambda: w.made_up(rng)),
        ("open", lambda: rng.random() < 0.5), ("count", lambda: rng.randint(0, 50)),
    ]
    return {k: f() for k, f in rng.sample(makers, rng.randint(1, 4))}


def json_object(rng: random.Random) -> Sample:
    fields = _fields(rng)
    if rng.random() < 0.15:
        fields["items"] = rng.sample(w.FOODS, rng.randint(2, 3))

    def spoken(value) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        return w.join_and(value) if isinstance(value, list) else str(value)

    said = w.join_and([f"{k} {spoken(v)}" for k, v in fields.items()])
    equals = ", ".join(f"{k} = {spoken(v)}" for k, v in fields.items())
    user = rng.choice((f"Make a JSON object with {said}.", f"Write JSON with {said}.", f"Give me JSON: {equals}",
                       f"Answer in JSON with {said}.", f"Turn this into JSON: {equals}"))
    conv = ask(rng, user, f"The keys are {w.join_and(list(fields))}.", python_json(fields),
               json_object=rng.random() < 0.4)
    return Sample(conv, f"json|{python_json(fields)}")
