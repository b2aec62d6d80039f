"""Recall of stated facts across distractors, in one turn and over several turns."""
from __future__ import annotations

import random
from dataclasses import dataclass

from ..render import Message
from . import words as w
from .chat import GREETINGS
from .common import Sample, make, sentence

UNKNOWN = "That was not stated."
NOTED = Message("assistant", "Noted.", "I keep this in mind.")
FACT_TOKENS, SENTENCE_TOKENS = 10, 9  # on average


@dataclass
class Fact:
    subject: str  # what two facts of one text must not share
    statement: str
    question: str
    answer: str
    value: str


def fact(rng: random.Random, small: bool = False) -> Fact:
    """One fact; `small` keeps to the word pool and short codes (first stages)."""
    c = rng.choice
    roll = rng.choice((0, 0, 1)) if small else rng.randrange(9)
    if roll == 0:
        thing = f"{c(w.COLORS[:5] if small else w.COLORS)} {c(w.OBJECTS[:14] if small else w.OBJECTS)}"
        code = w.digits(rng, rng.randint(2, 4) if small else rng.randint(3, 6))
        text = f"The code of the {thing} is {code}."
        return Fact(thing, text, f"What is the code of the {thing}?", text, code)
    if roll == 1:
        thing = f"{c(w.COLORS[:5] if small else w.COLORS)} {c(w.OBJECTS[:14] if small else w.OBJECTS)}"
        place = c(w.PLACES)
        text = f"The {thing} is in the {place}."
        return Fact(thing, text, f"Where is the {thing}?", text, place)
    name = c(w.NAMES)
    if roll == 2:
        kind, value = c((("color", c(w.COLORS)), ("food", c(w.FOODS)), ("animal", c(w.ANIMALS))))
        text = f"The favorite {kind} of {name} is {value}."
        question = c((f"What is the favorite {kind} of {name}?", f"Which {kind} does {name} like best?"))
        return Fact(f"{name} {kind}", text, question, text, value)
    if roll == 3:
        city = c(w.CITIES)
        return Fact(f"{name} city", f"{name} lives in {city}.", f"Where does {name} live?",
                    f"{name} lives in {city}.", city)
    if roll == 4:
        job = w.article(c(w.JOBS))
        return Fact(f"{name} job", f"{name} works as {job}.", f"What is the job of {name}?",
                    f"{name} works as {job}.", job)
    if roll == 5:
        event, time = c(("meeting", "party", "train", "concert", "lesson", "dinner")), w.clock(rng)
        day = c(w.WEEKDAYS)
        text = f"The {event} on {day} starts at {time}."
        return Fact(f"{event} {day}", text, f"When does the {event} on {day} start?", text, time)
    if roll == 6:
        word = w.made_up(rng)
        place = c(w.PLACES)
        text = f"The password of the {place} is {word}."
        return Fact(f"password {place}", text, f"What is the password of the {place}?", text, word)
    if roll == 7:
        number = w.digits(rng, rng.randint(5, 7))
        text = f"The phone number of {name} is {number}."
        return Fact(f"phone {name}", text, f"What is the phone number of {name}?", text, number)
    age = rng.randint(3, 95)
    text = f"{name} is {age} years old."
    return Fact(f"age {name}", text, f"How old is {name}?", text, str(age))


def distinct_facts(rng: random.Random, count: int, small: bool = False) -> list[Fact]:
    found: dict[str, Fact] = {}
    for _ in range(count * 20):
        if len(found) == count:
            break
        new = fact(rng, small)
        found.setdefault(new.subject, new)
    return list(found.values())


def key(fact: Fact) -> str:
    """What names the answer to a question about the fact (see Sample)."""
    return f"recall|{fact.subject}|{fact.value}"


def _answer(asked: Fact, known: bool, thought: str = "The text says {}.") -> Message:
    if not known:
        return Message("assistant", UNKNOWN, "I find nothing about it.")
    return Message("assistant", asked.answer, thought.format(asked.value))


def _text(rng: random.Random, length: int, small: bool) -> tuple[list[Fact], list[str]]:
    """(facts, lines in any order) of about `length` tokens; the facts are among the lines."""
    facts = distinct_facts(rng, max(2, min(rng.randint(2, 8), length // 25)), small)
    subjects = {f.subject for f in facts}
    lines = [f.statement for f in facts]
    used = FACT_TOKENS * len(lines)
    while used < length:
        other = fact(rng, small) if not small and rng.random() < 0.3 else None
        if other is None:
            lines.append(sentence(rng))
            used += SENTENCE_TOKENS
        elif other.subject not in subjects:
            subjects.add(other.subject)
            facts.append(other)
            lines.append(other.statement)
            used += FACT_TOKENS
    rng.shuffle(lines)
    return facts, lines


def _unstated(rng: random.Random, facts: list[Fact]) -> Fact:
    """A fact whose subject the text does not mention."""
    subjects = {f.subject for f in facts}
    while True:
        other = fact(rng)
        if other.subject not in subjects:
            return other


def recall(rng: random.Random, length: int, small: bool = False, once: bool = False,
           unknown: float = 0.15) -> Sample:
    """A text of about `length` tokens, facts among filler, then questions about them.

    Many questions share one text, because the text is what costs and the answers are what teaches;
    `once` asks a single one. `unknown` is the share of questions whose fact was not stated.
    """
    facts, lines = _text(rng, length - 30, small)
    most = 1 if once else max(1, min(12, length // 60, len(facts)))
    wanted = rng.sample(facts, rng.randint((most + 1) // 2, most))
    asked = [(_unstated(rng, facts), False) if not small and rng.random() < unknown else (f, True) for f in wanted]
    head = rng.choice(("", "Read this: ", "Remember this. ", "Here are some notes. ", "Text: "))
    body = head + " ".join(lines)
    joint = rng.choice(("\n\n", "\n", " ")) + rng.choice(("", "", "Question: ", "Now tell me. "))
    first = asked[0][0].question
    roll = rng.random()
    if roll < 0.15:  # the text in the system message
        messages = [Message("system", body), Message("user", first)]
    elif roll < 0.35:  # the text in an earlier turn
        messages = [Message("user", body), NOTED, Message("user", first)]
    else:
        messages = [Message("user", body + joint + first)]
    messages.append(_answer(*asked[0]))
    for more in asked[1:]:
        messages += [Message("user", more[0].question), _answer(*more)]
    keys = [key(f) for f, _ in asked]
    return Sample(make(rng, messages), keys[-1], keys[:-1])


def unknown(rng: random.Random) -> Sample:
    """The last question is about something that the text does not state.

    A refusal has no value that could be new, so its key is the missing subject and how many lines the text has.
    It keeps apart instances of this task only: training meets the subject with other texts, and `recall` asks for
    unstated facts under keys of its own. What a held-out refusal has that training has not is its text.
    """
    facts, lines = _text(rng, rng.randint(40, 400), False)
    asked = [(f, True) for f in rng.sample(facts, min(len(facts), rng.randint(0, 3)))]
    missing = _unstated(rng, facts)
    messages = [Message("user", " ".join(lines)), NOTED]
    for more in [*asked, (missing, False)]:
        messages += [Message("user", more[0].question), _answer(*more)]
    return Sample(make(rng, messages), f"unknown|{missing.subject}|{len(lines)}", [key(f) for f, _ in asked])


_FILL_TURNS = [
    ("How are you?", "Small talk.", "I am fine, thank you. How can I help you?"),
    ("Thank you.", "The user thanks me.", "You are welcome!"),
    ("Who are you?", "The user asks who I am.", "I am nano, a small model that runs on Millrace."),
    ("What is your name?", "The user asks for my name.", "My name is nano."),
    ("Are you there?", "The user checks that I am here.", "Yes, I am here."),
    ("What color is the sky?", "I know this.", "The sky is blue."),
    ("Count to three.", "I know this.", "One, two, three."),
]


def multi_turn(rng: random.Random) -> Sample:
    """The user states facts in early turns and asks for them later."""
    messages: list[Message] = []
    if rng.random() < 0.3:
        hello = rng.choice(GREETINGS)
        reply = hello if hello.startswith("Good ") else "Hello"
        messages += [Message("user", hello + "!"),
                     Message("assistant", f"{reply}! How can I help you?", "The user greets me.")]
    facts = distinct_facts(rng, rng.randint(1, 3))
    own = rng.random() < 0.35
    if own:
        kind, value, form = rng.choice((
            ("name", rng.choice(w.NAMES), "My name is {}."), ("name", rng.choice(w.NAMES), "I am {}."),
            ("favorite color", rng.choice(w.COLORS), "My favorite color is {}."),
            ("city", rng.choice(w.CITIES), "I live in {}."), ("secret word", w.made_up(rng), "My secret word is {}."),
            ("lucky number", w.digits(rng, rng.randint(1, 4)), "My lucky number is {}.")))
        question = {"name": "What is my name?", "city": "Where do I live?"}.get(kind, f"What is my {kind}?")
        answer = {"name": f"Your name is {value}.", "city": f"You live in {value}."}.get(
            kind, f"Your {kind} is {value}.")
        facts.append(Fact(f"own {kind}", form.format(value), question, answer, value))
    rng.shuffle(facts)
    for f in facts:
        lead = rng.choice(("", "", "Remember: ", "Please remember this. "))
        messages += [Message("user", lead + f.statement), NOTED]
        if rng.random() < 0.3:
            user, thought, answer = rng.choice(_FILL_TURNS)
            messages += [Message("user", user), Message("assistant", answer, thought)]
    for _ in range(rng.randint(0, 3)):
        user, thought, answer = rng.choice(_FILL_TURNS)
        messages += [Message("user", user), Message("assistant", answer, thought)]
    asked = rng.sample(facts, rng.randint(1, len(facts)))
    for f in asked:
        messages += [Message("user", f.question), _answer(f, True, "The user said {}.")]
    keys = [key(f) for f in asked]
    return Sample(make(rng, messages), keys[-1], keys[:-1])
