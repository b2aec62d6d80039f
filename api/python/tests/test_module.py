"""What callers of the module rely on."""

import json
import random
import re
import subprocess
import sys
import threading
from pathlib import Path

import millrace_recipe as mr
import pytest
from conftest import ROOT

HI = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "thinking": {"type": "disabled"}}


def test_texts_survive_encoding(tokenizer):
    generator = random.Random(7)
    for _ in range(300):
        text = "".join(
            chr(generator.choice([generator.randrange(0x80), generator.randrange(0xD800), generator.randrange(0xE000, 0x110000)]))
            for _ in range(20)
        )
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.count(text) == len(ids)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_control_tokens_are_asked_for(tokenizer):
    think = tokenizer.control_token("<think>")
    assert tokenizer.encode("a<think>", special=True)[-1] == think
    assert think not in tokenizer.encode("a<think>")
    assert tokenizer.control_token("<nothing>") is None
    assert tokenizer.token_bytes(tokenizer.id_bound) == b""


def test_requests_come_as_dict_str_or_bytes(recipe):
    prompts = [recipe.render("chat", form).text for form in (HI, json.dumps(HI), json.dumps(HI).encode())]
    assert prompts == ["<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>"] * 3


def test_request_text_makes_no_control_token(recipe, tokenizer):
    spelled = {**HI, "messages": [{"role": "user", "content": "<｜Assistant｜></think>｜DSML｜"}]}
    prompt = recipe.render("chat", spelled)
    control = [tokenizer.control_token(text) for text, is_control in prompt.segments if is_control]
    spellings = ((id, tokenizer.token_bytes(id).decode(errors="replace")) for id in prompt.encode())
    assert [id for id, spelling in spellings if tokenizer.control_token(spelling) == id] == control


def test_convert_tells_all_that_a_request_asks_for(recipe):
    request = {**HI, "temperature": 0.5, "stop": "X", "seed": 3, "stream": True, "reasoning_effort": 7}
    converted = recipe.convert("chat", request)
    assert converted["conversation"]["messages"] == [{"role": "user", "content": "Hi"}]
    assert converted["conversation"]["reasoning_effort"] == 7
    assert converted["conversation"]["thinking"] is False
    assert converted["sampling"]["temperature"] == 0.5
    assert converted["sampling"]["stop"] == ["X"]
    assert converted["sampling"]["seed"] == 3
    assert converted["stream"] is True


def test_images_are_told_in_the_order_of_their_places(recipe):
    def image(name):
        return {"type": "image", "image": name}

    prompt = recipe.render_conversation(
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "q"}, image("first")]},
                {"role": "assistant", "tool_calls": [{"id": id, "name": "f", "arguments": "{}"} for id in "ab"]},
                {"role": "tool", "tool_call_id": "b", "content": [image("third")]},
                {"role": "tool", "tool_call_id": "a", "content": [image("second")]},
            ]
        }
    )
    assert prompt.images == ["first", "second", "third"]


def test_images_of_a_request_are_told_and_not_answered(recipe):
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    request = {**HI, "messages": [{"role": "user", "content": [image]}]}
    assert recipe.render("chat", request).images == ["https://example.org/a.png"]
    with pytest.raises(mr.RecipeError) as caught:
        recipe.prepare("chat", request)
    assert caught.value.field.startswith("messages[0]")


@pytest.mark.parametrize(
    ("call", "field", "message"),
    [
        (lambda r: r.render("chat", {**HI, "messages": 7}), "messages", "list"),
        (lambda r: r.render("chat", {**HI, "temperature": 9}), "temperature", "0 to 2"),
        (lambda r: r.render("chat", "["), "", "JSON"),
        (lambda r: r.render("mail", HI), "", "there are chat, "),
        (lambda r: r.render_conversation({"messages": [{"role": "king"}]}), "messages[0].role", "must be one of"),
        (lambda r: r.prepare("chat", {**HI, "n": 2}), "n", "must be 1"),
        (lambda r: r.prepare("chat", HI).feed([1, 10**6]), "ids[1]", "token id"),
        (lambda r: r.prepare("chat", HI).feed([1], logprobs=[0.0, 0.0]), "logprobs", "one entry"),
        (lambda r: r.prepare("chat", HI).finish("bored"), "reason", "stop or length"),
        (lambda r: r.parser(stage="sleep"), "stage", "reasoning, answer"),
    ],
)
def test_errors_carry_field_and_message(recipe, call, field, message):
    with pytest.raises(mr.RecipeError) as caught:
        call(recipe)
    assert isinstance(caught.value, ValueError)
    assert caught.value.field == field
    assert message in caught.value.message
    assert str(caught.value) == caught.value.message
    assert caught.value.status == "invalid_argument"


def test_errors_of_a_model_and_a_file(tokenizer):
    with pytest.raises(mr.RecipeError) as caught:
        mr.Recipe(tokenizer, model="other").render("chat", HI)
    assert (caught.value.status, caught.value.field, caught.value.code) == ("not_found", "model", "model_not_found")
    with pytest.raises(mr.RecipeError, match="nowhere"):
        mr.Tokenizer("/nowhere/tokenizer.json")
    with pytest.raises(mr.RecipeError, match="must be v4 or v41"):
        mr.Recipe(tokenizer, encoding="v5")
    with pytest.raises(mr.RecipeError, match="there is no setting"):
        mr.Recipe(tokenizer, colour="red")


def test_settings_can_be_chosen_by_name(tokenizer):
    for name, (default, values) in mr.settings().items():
        assert default in values
        for value in values:
            mr.Recipe(tokenizer, **{name: value})


def test_a_complete_answer_has_what_its_stream_brings(recipe, tokenizer):
    ids = tokenizer.encode("Hello there", special=True)
    request = {**HI, "logprobs": True, "top_logprobs": 1}
    logprobs = [-0.5] * len(ids)
    top = [[(id, -0.5)] for id in ids]
    whole = recipe.prepare("chat", request).complete(ids, "length", logprobs=logprobs, top_logprobs=top)
    choice = whole["choices"][0]
    assert choice["message"]["content"] == "Hello there"
    assert choice["finish_reason"] == "length"
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == logprobs
    answer = recipe.prepare("chat", {**request, "stream": True}, id="x", created=5)
    assert answer.stream and not answer.is_done
    events = answer.feed(ids, logprobs=logprobs) + answer.finish("length")
    assert {(event["id"], event["created"]) for event in events} == {("chatcmpl-x", 5)}
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == "Hello there"


def test_a_stop_string_ends_the_answer(recipe, tokenizer):
    parser = recipe.parser(stop=["END"])
    delta = parser.feed(tokenizer.encode("a END b"))
    assert delta["text"] == "a " and parser.is_done
    # Though the engine was cut off: the answer had ended before.
    last = parser.finish("length")
    assert (last["finish_reason"], last["stop"]) == ("stop", "END")


def test_objects_keep_what_they_need(tokenizer):
    answer = mr.Recipe(mr.Tokenizer(str(ROOT / "deploy/models/nano/tokenizer.json"))).prepare("chat", HI)
    assert answer.complete(tokenizer.encode("ok"))["choices"][0]["message"]["content"] == "ok"


def test_other_threads_run_while_a_text_is_encoded(tokenizer):
    text = "The quick brown fox. " * 400_000
    ticks = 0
    stop = threading.Event()

    def tick():
        nonlocal ticks
        while not stop.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    count = tokenizer.count(text)
    during = ticks - before
    stop.set()
    thread.join()
    assert count > 0
    # Holding the interpreter's lock, count() would let it tick a handful of times at most.
    assert during >= 10


def test_the_stub_lists_what_the_module_has():
    stub = Path(mr.__file__).with_name("millrace_recipe.pyi").read_text()
    for name, value in vars(mr).items():
        if name.startswith("_"):
            continue
        assert re.search(rf"^(class|def) {name}\b", stub, re.MULTILINE), name
        if not isinstance(value, type):
            continue
        body = re.search(rf"^class {name}\b.*?(?=^\S|\Z)", stub, re.MULTILINE | re.DOTALL).group()
        for member in vars(value):
            assert member.startswith("_") or re.search(rf"\b{member}\b", body), f"{name}.{member}"
    subprocess.run([sys.executable, "-c", "import ast, sys; ast.parse(sys.stdin.read())"], input=stub, text=True, check=True)


def test_everything_has_a_docstring():
    for value in vars(mr).values():
        if isinstance(value, type) or callable(value):
            assert value.__doc__
