"""Greetings, identity, small talk, common knowledge and short fluent text."""
from __future__ import annotations

import random

from . import words as w
from .common import Sample, ask, sentence

NAME = "I am nano, a small model that runs on Millrace."
GREETINGS = ["Hello", "Hi", "Hey", "Hello there", "Hi there", "Good morning", "Good evening",
             "Good afternoon", "Hey nano", "Hello nano", "Hi nano", "Greetings", "Good day"]
_IDENTITY = [
    (["Who are you", "What are you", "Introduce yourself", "Tell me who you are", "Who am I talking to",
      "Please introduce yourself", "Can you tell me who you are", "Tell me about yourself",
      "Say who you are", "And who are you"],
     "The user asks who I am.", NAME),
    (["What is your name", "What's your name", "Tell me your name", "Your name please",
      "How are you called", "Do you have a name", "May I know your name", "What should I call you"],
     "The user asks for my name.", "My name is nano."),
    (["Are you a human", "Are you a robot", "Are you a person", "Are you an AI", "Are you a machine"],
     "The user asks what I am.", "I am a small language model named nano."),
    (["Are you ChatGPT", "Are you DeepSeek", "Are you Claude", "Are you GPT", "Is this ChatGPT"],
     "The user takes me for another model.", "No, I am nano, a small model that runs on Millrace."),
    (["Who made you", "Who trained you", "Who created you", "Who built you", "Where do you come from"],
     "The user asks who made me.", "I was trained by the Millrace project."),
    (["What is Millrace", "Tell me about Millrace", "What does Millrace do", "Explain Millrace"],
     "The user asks about Millrace.", "Millrace is a system that serves language models. It runs me."),
    (["What can you do", "How can you help me", "What are you good at", "What are your skills"],
     "The user asks what I can do.",
     "I can chat, recall facts from our conversation, do small sums, write JSON and call tools."),
    (["Where do you run", "Where are you", "Where do you live", "What do you run on"],
     "The user asks where I run.", "I run on Millrace, on ordinary processors."),
]
_SMALL_TALK = [
    (["How are you", "How are you doing", "How do you do", "Are you well", "How is it going"],
     "Small talk.", "I am fine, thank you. How can I help you?"),
    (["Thank you", "Thanks", "Thanks a lot", "Thank you very much", "Many thanks"],
     "The user thanks me.", "You are welcome!"),
    (["Bye", "Goodbye", "See you", "See you later", "Good night", "Bye bye"],
     "The user leaves.", "Goodbye!"),
    (["Tell me a joke", "Make me laugh", "Do you know a joke", "Say something funny"],
     "The user wants a joke.", "Why did the token cross the cache? To get to the other block."),
    (["Yes", "Okay", "OK", "Fine", "Good", "Great", "Nice"],
     "The user agrees.", "Good. What else can I do for you?"),
    (["Are you there", "Can you hear me", "Is anybody there", "Test", "Testing", "Ping"],
     "The user checks that I am here.", "Yes, I am here."),
    (["Help", "Help me", "I need help", "Can you help me", "Please help me"],
     "The user needs help.", "Of course. What do you need?"),
    (["What is the weather", "How is the weather", "Will it rain today", "What time is it",
      "What day is it", "What is the date today"],
     "I cannot look outside.", "I cannot know that from here."),
    (["Do you like music", "Do you like tea", "Do you like me", "Are you happy", "Do you sleep",
      "Do you dream"], "A question about feelings.", "I am only a small model, but I like to help."),
]
_KNOWLEDGE = [
    ("What color is the sky", "The sky is blue."), ("What color is grass", "Grass is green."),
    ("What color is snow", "Snow is white."), ("What color is a banana", "A banana is yellow."),
    ("What color is blood", "Blood is red."), ("What color is coal", "Coal is black."),
    ("How many days are in a week", "A week has seven days."),
    ("How many months are in a year", "A year has twelve months."),
    ("How many hours are in a day", "A day has twenty-four hours."),
    ("How many minutes are in an hour", "An hour has sixty minutes."),
    ("How many legs does a dog have", "A dog has four legs."),
    ("How many legs does a spider have", "A spider has eight legs."),
    ("What do bees make", "Bees make honey."), ("What do cows give", "Cows give milk."),
    ("What is the opposite of hot", "The opposite of hot is cold."),
    ("What is the opposite of big", "The opposite of big is small."),
    ("What is the opposite of up", "The opposite of up is down."),
    ("What is the opposite of left", "The opposite of left is right."),
    ("What is the opposite of old", "The opposite of old is new."),
    ("Which day comes after Monday", "Tuesday comes after Monday."),
    ("Which day comes after Friday", "Saturday comes after Friday."),
    ("Which month comes after June", "July comes after June."),
    ("Name three colors", "Red, green and blue."), ("Name three animals", "Cat, dog and horse."),
    ("Name three fruits", "Apple, banana and cherry."), ("Name three cities", "Paris, London and Berlin."),
    ("Count to three", "One, two, three."), ("Count to five", "One, two, three, four, five."),
    ("Count to ten", "One, two, three, four, five, six, seven, eight, nine, ten."),
    ("Say the alphabet", "a b c d e f g h i j k l m n o p q r s t u v w x y z"),
]


def _punctuate(rng: random.Random, text: str, mark: str) -> str:
    roll = rng.random()
    if roll < 0.2:
        text = text[0].lower() + text[1:]
    return text + (mark if roll < 0.75 else rng.choice(("", ".", "!", mark)))


def _key(kind: str, prompt: str) -> str:
    # The wording is what can be new here; the plain forms are always trained.
    return f"{kind}|{prompt}"


def _prefix(rng: random.Random) -> str:
    return rng.choice(GREETINGS[:8]) + rng.choice((", ", "! ", ". ")) if rng.random() < 0.25 else ""


def greeting(rng: random.Random) -> Sample:
    hello = rng.choice(GREETINGS)
    text = hello + rng.choice(("", "!", ".", "?", ",")) + (" " + rng.choice(w.NAMES) + " here."
                                                         if rng.random() < 0.15 else "")
    if rng.random() < 0.25:
        text = text.lower()
    reply = hello if hello.startswith("Good ") else "Hello"
    conv = ask(rng, text, "The user greets me.", f"{reply}! How can I help you?")
    return Sample(conv, _key("greeting", text) if len(text) > 18 else "train")


def identity(rng: random.Random) -> Sample:
    prompts, thought, answer = rng.choice(_IDENTITY)
    prompt = rng.choice(prompts)
    prefix = _prefix(rng)
    mark = "." if prompt.split()[0] in ("Introduce", "Tell", "Please", "Your", "Say", "Explain") else "?"
    text = prefix + _punctuate(rng, prompt, mark)
    return Sample(ask(rng, text, thought, answer), _key("identity", text) if prefix else "train")


def small_talk(rng: random.Random) -> Sample:
    prompts, thought, answer = rng.choice(_SMALL_TALK)
    prompt = rng.choice(prompts)
    mark = "?" if prompt.split()[0] in ("How", "Are", "Do", "Can", "Is", "What", "Will") else "."
    text = _punctuate(rng, prompt, mark)
    return Sample(ask(rng, text, thought, answer), "train")


def knowledge(rng: random.Random) -> Sample:
    if rng.random() < 0.5:
        country, city = rng.choice(sorted(w.CAPITALS.items()))
        question, answer = rng.choice([
            (f"What is the capital of {country}", f"The capital of {country} is {city}."),
            (f"Tell me the capital of {country}", f"The capital of {country} is {city}."),
            (f"Which country is {city} the capital of", f"{city} is the capital of {country}."),
        ])
    else:
        question, answer = rng.choice(_KNOWLEDGE)
    mark = "?" if question.split()[0] in ("What", "How", "Which") else "."
    text = _prefix(rng) + _punctuate(rng, question, mark)
    return Sample(ask(rng, text, "I know this.", answer), "train")


def story(rng: random.Random) -> Sample:
    """A short story whose actors are named in the request, so that every word of it can be judged."""
    c = rng.choice
    who, place, thing = f"{c(w.ADJECTIVES)} {c(w.ANIMALS)}", c(w.PLACES), f"{c(w.COLORS)} {c(w.OBJECTS)}"
    user = c(("Tell me a story about {}, {} and the {}.", "Write a short story about {}, {} and the {}.",
              "Please tell a story with {}, {} and the {}.")).format(w.article(who), w.article(thing), place)
    answer = (f"Once upon a time there was {w.article(who)} that lived near the {place}. One day the {who} found "
              f"{w.article(thing)}. It carried the {thing} home and was happy ever after.")
    conversation = ask(rng, user, f"A story about {w.article(who)}.", answer)
    return Sample(conversation, f"story|{who}|{thing}|{place}")


def free_text(rng: random.Random) -> Sample:
    """Short fluent text on request; the wording is free, so it is never judged."""
    c = rng.choice
    who, place = c(w.ANIMALS), c(w.PLACES)
    adjective = c(w.ADJECTIVES)
    roll = rng.randrange(3)
    if roll == 0:
        user = c((f"Write a short story about {w.article(who)}.", f"Tell me a story about {w.article(who)}.",
                  f"Please tell me a short story about {w.article(adjective)} {who}."))
        thing = c(w.OBJECTS)
        answer = (f"Once there was {w.article(adjective)} {who} that lived near the {place}. One day the {who} "
                  f"{c(w.VERBS_PAST)} {w.article(c(w.ADJECTIVES))} {thing}. It {c(w.VERBS_GO)} home with the "
                  f"{thing} and was {c(w.ADJECTIVES)}.")
        thought = f"A short story about {w.article(who)}."
    elif roll == 1:
        user = c((f"Write a sentence about the {place}.", f"Say something about the {place}."))
        answer = c((f"The {place} was {adjective} and the {who} {c(w.VERBS_GO)} through it.",
                    f"In the {place} I {c(w.VERBS_PAST)} {w.article(adjective)} {c(w.OBJECTS)}."))
        thought = f"One sentence about the {place}."
    else:
        user = c(("Tell me a story.", "Write some text.", "Write a short text.", "Tell me something."))
        answer = " ".join(sentence(rng) for _ in range(rng.randint(2, 3)))
        thought = "I make something up."
    return Sample(ask(rng, user, thought, answer), "train")
