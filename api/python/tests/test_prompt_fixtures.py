"""Every recorded prompt, through the module."""

import json

import millrace_recipe as mr
import pytest
import release
from conftest import read, read_lines

CASES = read_lines("prompt_cases.jsonl")
PROTOCOLS = {"chat_completions": "chat", "responses": "responses", "messages": "messages"}

# Recorded errors that are on purpose none here, with the reason.
TAKEN_ON_PURPOSE = {
    "chat_n_two": "several choices are served",
    "resp_unsupported_custom": "every custom tool is served",
}


def encoding_of(case):
    return "v41" if case["encoding"] == "v4.1" else case["encoding"]


def cases_of(*protocols):
    return [pytest.param(case, id=case["name"]) for case in CASES if case["protocol"] in protocols]


def test_every_case_is_of_a_known_kind():
    assert {case["protocol"] for case in CASES} == {*PROTOCOLS, "messages-list"}
    assert set(mr.protocols()) == set(PROTOCOLS.values())


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_releases_own_tests_of_v4(tokenizer, number):
    given = json.loads(read(f"v4-official/test_input_{number}.json"))
    body = {"messages": given} if isinstance(given, list) else dict(given)
    # The release's script runs the last one outside thinking mode.
    body["thinking_mode"] = "chat" if number == 4 else "thinking"
    recipe = mr.Recipe(tokenizer, encoding="v4", v4_efforts="april-2026", **release.SETTINGS)
    prompt = recipe.render_conversation(release.conversation(body))
    assert prompt.text.encode() == read(f"v4-official/test_output_{number}.txt").encode()


@pytest.mark.parametrize("case", cases_of("messages-list"))
def test_reference_encoders(tokenizer, case):
    recipe = mr.Recipe(tokenizer, encoding=encoding_of(case), **release.SETTINGS)
    prompt = recipe.render_conversation(release.conversation(case["body"]))
    assert prompt.text == case["expected"]["prompt"]


@pytest.mark.parametrize("old_reasoning", ["keep", "drop-without-tools"])
@pytest.mark.parametrize("case", cases_of(*PROTOCOLS))
def test_protocols(tokenizer, case, old_reasoning):
    recipe = mr.Recipe(tokenizer, encoding=encoding_of(case), old_reasoning=old_reasoning)
    protocol = PROTOCOLS[case["protocol"]]
    if "error" in case["expected"] and case["name"] not in TAKEN_ON_PURPOSE:
        with pytest.raises(mr.RecipeError) as caught:
            recipe.render(protocol, case["body"])
        assert caught.value.message == case["expected"]["error"]
        return
    prompt = recipe.render(protocol, case["body"])
    assert prompt.text == case["expected"].get("prompt", prompt.text)
    # What convert() tells is all that rendering needs.
    conversation = recipe.convert(protocol, case["body"])["conversation"]
    again = recipe.render_conversation(conversation)
    assert again.segments == prompt.segments
    assert again.stage == prompt.stage


# Ids of control tokens in the published V4 and V4.1 tokenizers.
PUBLISHED_IDS = {
    "<｜begin▁of▁sentence｜>": 0,
    "<｜end▁of▁sentence｜>": 1,
    "<｜System｜>": 128799,
    "<｜User｜>": 128803,
    "<｜Assistant｜>": 128804,
    "<think>": 128821,
    "</think>": 128822,
    "｜DSML｜": 128825,
}


@pytest.mark.parametrize("recorded", json.loads(read("token_cases.json"))["prompts"], ids=lambda c: c["name"])
def test_control_tokens_stand_where_recorded_ids_have_them(tokenizer, recorded):
    case = next(case for case in CASES if case["name"] == recorded["name"])
    recipe = mr.Recipe(tokenizer, encoding=encoding_of(case))
    prompt = recipe.render(PROTOCOLS[case["protocol"]], case["body"])
    controls = [PUBLISHED_IDS[text] for text, is_control in prompt.segments if is_control]
    assert controls == [id for id in recorded["ids"] if id < 3 or id >= 128000]
    ids = prompt.encode()
    assert tokenizer.decode(ids) == prompt.text
    assert prompt.count() == len(ids)
    assert recipe.count(PROTOCOLS[case["protocol"]], case["body"]) == len(ids)
