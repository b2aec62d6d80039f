import random

import numpy as np
import pytest

from reference.train import render
from reference.train.data import mix, tasks
from reference.train.data.common import held_out
from reference.train.run import load_tokenizer


@pytest.mark.parametrize("task", sorted(mix.MAKERS))
def test_instances_depend_on_the_seed_alone(task):
    draw = lambda: [render.text_of(mix.sample(task, random.Random(7)).conversation) for _ in range(2)]
    first, again = draw()
    assert first == again
    assert first != render.text_of(mix.sample(task, random.Random(8)).conversation) or task == "greeting"


@pytest.mark.parametrize("task", ["arithmetic", "echo", "json", "lists", "strings", "recall_150", "multi_turn", "tools", "identity"])
def test_training_and_held_out_keys_are_disjoint(task):
    rng = random.Random(3)
    train = {mix.sample(task, rng).key for _ in range(200)}
    test = {mix.sample(task, rng, test=True).key for _ in range(40)}
    assert not train & test
    assert all(held_out(k) for k in test) and not any(held_out(k) for k in train)


def test_recall_answers_stand_in_the_prompt():
    rng = random.Random(5)
    for _ in range(50):
        conversation = mix.sample("recall_512", rng).conversation
        said = ""
        for message in conversation.messages:
            if message.role == "assistant" and message.content not in ("Noted.", "That was not stated."):
                assert message.content in said
            said += message.content


@pytest.mark.parametrize("a,b", [(0, 0), (7, 8), (99, 1), (347, 285), (999, 999), (100, 5)])
def test_carry_steps_end_in_the_digits_of_the_sum(a, b):
    results = [s.split("=")[-1].split(" ")[0] for s in tasks.addition_steps(a, b).split(", ")]
    assert results[-1] + "".join(r[-1] for r in results[:-1])[::-1] == str(a + b)


@pytest.mark.parametrize("a,b", [(5, 3), (15, 8), (100, 1), (942, 467), (305, 305)])
def test_borrow_steps_end_in_the_digits_of_the_difference(a, b):
    digits = [s.split("=")[-1].split(" ")[0] for s in tasks.subtraction_steps(a, b).split(", ")]
    assert int("".join(digits)[::-1]) == a - b


def test_rows_hold_whole_documents_at_even_offsets():
    tokenizer = load_tokenizer()
    batch = mix.Stream(tokenizer, "E", 1024, "x").batch(3)
    for tokens, start, weight, target, floor in zip(*(batch[k] for k in ("tokens", "start", "weight", "target", "floor"))):
        inside = weight > 0
        assert (start[inside] % 2 == 0).all()
        assert (tokens[np.unique(start[inside])] == 0).all()
        assert (target[:-1][inside[:-1]] == tokens[1:][inside[:-1]]).all()
        assert (tokens == 0).sum() == len(np.unique(start[inside]))
        position = np.arange(len(start)) - start
        assert (floor[inside] <= position[inside]).all()
