import random
import re

import numpy as np
import pytest

from reference.train import render
from reference.train.data import mix, tasks
from reference.train.data.common import held_out


@pytest.mark.parametrize("task", sorted(mix.MAKERS))
def test_instances_depend_on_the_seed_alone(task):
    draw = lambda: [render.text_of(mix.sample(task, random.Random(7)).conversation) for _ in range(2)]
    first, again = draw()
    assert first == again
    assert first != render.text_of(mix.sample(task, random.Random(8)).conversation) or task == "greeting"


@pytest.mark.parametrize("task", ["arithmetic", "echo", "json", "lists", "strings", "recall_150",
                                  "multi_turn", "tools", "two_calls", "tool_result", "unknown", "session", "identity"])
def test_training_and_held_out_keys_are_disjoint(task):
    rng = random.Random(3)
    train = {mix.sample(task, rng).key for _ in range(60)} if task in mix.MAKERS else set()
    test = {mix.sample(task, rng, test=True).key for _ in range(20)}
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


def written_numbers(steps):
    return [step.split(": ")[1] for step in steps.split(", ")]


@pytest.mark.parametrize("a,b", [(0, 0), (7, 8), (99, 1), (347, 285), (999, 999), (100, 5)])
def test_carry_steps_write_the_sum_from_the_right(a, b):
    written = written_numbers(tasks.addition_steps(a, b))
    assert written[-1] == str(a + b)
    assert all(str(a + b).endswith(w) for w in written)


@pytest.mark.parametrize("a,b", [(5, 3), (15, 8), (100, 1), (942, 467), (305, 305)])
def test_borrow_steps_write_the_difference_from_the_right(a, b):
    written = written_numbers(tasks.subtraction_steps(a, b))
    assert written[-1] == str(a - b)
    assert all(str(a - b).zfill(len(str(a))).endswith(w) for w in written[:-1])


def test_every_step_of_a_sum_is_a_true_equation():
    rng = random.Random(11)
    for _ in range(300):
        a, b = rng.randrange(1000), rng.randrange(1000)
        for steps in (tasks.addition_steps(a, b), tasks.subtraction_steps(max(a, b), min(a, b))):
            for step in steps.split(", "):
                equation = step.split(":")[0].split(" carry")[0].split(" borrow")[0]
                left, *right = equation.split("=")
                assert not right or eval(left) == int(right[0])


def test_no_answer_of_a_training_conversation_is_held_out():
    rng = random.Random(9)
    for task in ("session", "recall_512", "tools", "multi_turn", "unknown"):
        for _ in range(30):
            drawn = mix.sample(task, rng)
            assert not any(held_out(key) for key in [drawn.key, *drawn.others])


# A question, and how the line begins that answers it.
ANSWERED_BY = [(r"What is the code of the (.+)\?", r"The code of the {} is "),
               (r"Where is the (.+)\?", r"The {} is in "),
               (r"What is the favorite (.+)\?", r"The favorite {} is "),
               (r"Which (.+) does (.+) like best\?", r"The favorite {} of {} is "),
               (r"Where does (.+) live\?", r"{} lives in "), (r"What is the job of (.+)\?", r"{} works as "),
               (r"When does the (.+) start\?", r"The {} starts at "), (r"How old is (.+)\?", r"{} is \d+ years old"),
               (r"What is the password of the (.+)\?", r"The password of the {} is "),
               (r"What is the phone number of (.+)\?", r"The phone number of {} is ")]


def is_stated(question, text):
    """Whether a line of the text answers the question."""
    (asked, line), = [(asked, line) for form, line in ANSWERED_BY if (asked := re.fullmatch(form, question))]
    return re.search(line.format(*asked.groups()), text) is not None


@pytest.mark.parametrize("task", ["recall_150", "recall_512", "unknown"])
def test_exactly_what_was_not_stated_is_refused(task):
    rng, refused, answered = random.Random(6), 0, 0
    for _ in range(60):
        text = ""
        for message in mix.sample(task, rng).conversation.messages:
            *said, question = re.split(r"[.:] |\n", message.content)
            if message.role == "user" and question.endswith("?"):
                text += ". ".join(said)
                stated = is_stated(question, text)
            elif message.role == "assistant" and message.content != "Noted.":
                assert (message.content == "That was not stated.") == (not stated), (question, text)
                refused, answered = refused + (not stated), answered + stated
            else:
                text += message.content
    assert refused >= 10 and answered >= 10


def sums(messages):
    """The sums that the answers end with."""
    return {asked for message in messages if message.role == "assistant"
            for asked in re.findall(r"(\d+ [-+*] \d+) = \d+$", message.content)}


def test_no_sum_of_the_exam_is_a_training_answer():
    """Read from the text, not from the keys. Without the split dozens would meet."""
    rng = random.Random(4)
    asked = set().union(*(sums(mix.sample(task, rng, test=True).conversation.messages[-1:])
                          for task in ("arithmetic", "session") for _ in range(150)))
    trained = set().union(*(sums(mix.sample(task, rng).conversation.messages)
                            for task in ("arithmetic", "session") for _ in range(1500)))
    assert not asked & trained


@pytest.mark.parametrize("task,calls", [("tools", 1), ("two_calls", 2)])
def test_exam_conversations_end_in_that_many_calls(task, calls):
    rng = random.Random(2)
    for _ in range(20):
        last = mix.sample(task, rng, test=True).conversation.messages[-1]
        assert len(last.calls) == calls


def test_rows_hold_whole_documents_at_even_offsets(nano):
    batch = mix.Stream(nano.tokenizer, "E", 1024, "x").batch(3)
    names = ("tokens", "start", "weight", "target", "floor")
    for tokens, start, weight, target, floor in zip(*(batch[k] for k in names)):
        inside = weight > 0
        assert (start[inside] % 2 == 0).all()
        assert (tokens[np.unique(start[inside])] == 0).all()
        assert (target[:-1][inside[:-1]] == tokens[1:][inside[:-1]]).all()
        assert (tokens == 0).sum() == len(np.unique(start[inside]))
        position = np.arange(len(start)) - start
        assert (floor[inside] <= position[inside]).all()
