"""Every recorded output and stream, through the module."""

import json

import millrace_recipe as mr
import pytest
from conftest import FIXTURES, read_lines


def parse(recipe, ids, stage, step):
    """An output's parse, its ids fed in groups of `step`."""
    parser = recipe.parser(stage=stage, tools=[])
    deltas = [parser.feed(ids[i : i + step]) for i in range(0, len(ids), step)]
    deltas.append(parser.finish())
    calls = []
    for event in (event for delta in deltas for event in delta["tool_events"]):
        if event["kind"] == "begin":
            calls.append({"name": event["text"], "arguments": "", "has_ended": False})
        elif event["kind"] == "arguments":
            calls[-1]["arguments"] += event["text"]
        else:
            calls[-1]["has_ended"] = True
    return {
        "reasoning": "".join(delta["reasoning"] for delta in deltas),
        "text": "".join(delta["text"] for delta in deltas),
        "calls": calls,
        "finish_reason": deltas[-1]["finish_reason"],
    }


def parse_text(recipe, tokenizer, byte_ids, text, stage):
    """The parse of a text, which is the same however it is cut."""
    whole = parse(recipe, tokenizer.encode(text, special=True), stage, 1 << 20)
    for ids in (tokenizer.encode(text, special=True), byte_ids(text)):
        for step in (1, 2, 7):
            assert parse(recipe, ids, stage, step) == whole
    return whole


# Where the parser differs on purpose, with the reason.
DIFFERING = {
    "dsv4_alternate_dsml_tag": "the marker counts by its id only, not in another spelling",
    "dsv4_wrong_block_name_should_not_parse": "another block's name does not lose the call",
    "dsv4_malformed_unclosed_outer_block": "a missing block closer does not lose the call",
    "dsv4_malformed_unclosed_invoke": "a missing invoke closer does not lose the call",
}
DSML_CASES = read_lines("deepseek_v4_dsml.jsonl")


def test_every_differing_case_exists():
    assert set(DIFFERING) <= {case["id"] for case in DSML_CASES}


@pytest.mark.parametrize("case", DSML_CASES, ids=lambda case: case["id"])
def test_dsml_cases(recipe, tokenizer, byte_ids, case):
    output = parse_text(recipe, tokenizer, byte_ids, case["raw_output"], "answer")
    if case["id"] == "dsv4_alternate_dsml_tag":
        assert output["text"] == case["raw_output"]
        return
    if case["id"] in DIFFERING:
        assert output["calls"] == [{"name": "get_weather", "arguments": '{"city": "北京"}', "has_ended": True}]
        assert output["text"] == ""
        return
    expected = case["expected"]
    assert output["text"] == (expected["content"] or "")
    assert (output["finish_reason"] == "tool_calls") == expected["tools_called"]
    calls = [{"name": call["name"], "arguments": json.loads(call["arguments"])} for call in output["calls"]]
    assert calls == [{"name": call["name"], "arguments": call["arguments"]} for call in expected["tool_calls"]]
    assert all(call["has_ended"] for call in output["calls"])


@pytest.mark.parametrize("path", sorted((FIXTURES / "v4-streams").iterdir()), ids=lambda path: path.stem)
def test_v4_streams(recipe, tokenizer, byte_ids, path):
    capture = json.loads(path.read_bytes())
    deltas = [event["data"]["choices"][0]["delta"] for event in capture["input_stream"]]
    content = "".join(delta.get("content") or "" for delta in deltas)
    output = parse_text(recipe, tokenizer, byte_ids, content, "reasoning")
    expected = capture["expected_output"]
    assert output["reasoning"] == expected["reasoning_content"]
    assert output["text"] == expected["normal_content"]
    functions = [call["function"] for call in expected["tool_calls"]]
    assert [(call["name"], call["arguments"]) for call in output["calls"]] == [
        (function["name"], function["arguments"]) for function in functions
    ]


def events_of(answer, tokenizer, chunks):
    """The events of a recorded backend's chunks."""
    events = answer.feed([])
    reason = "stop"
    for chunk in chunks:
        if chunk["kind"] == "text":
            events += answer.feed(tokenizer.encode(chunk["content"], special=True))
        elif chunk["kind"] == "finish" and chunk["finish_reason"] == "length":
            reason = "length"
    return events + answer.finish(reason)


def merged(events, holder_of):
    """Events of which those that follow each other and bring pieces of one text are one."""
    result = []
    for event in events:
        held = holder_of(event)
        before = holder_of(result[-1]) if result else None
        if held and before:
            before[0][before[1]] += held[0][held[1]]
        else:
            result.append(event)
    return result


def chat_arguments(event):
    calls = event["choices"][0]["delta"].get("tool_calls") if event["choices"] else None
    return (calls[0]["function"], "arguments") if calls and "id" not in calls[0] else None


def messages_arguments(event):
    return (event["delta"], "partial_json") if "partial_json" in event.get("delta", {}) else None


def stream_cases(protocol):
    cases = read_lines("stream_cases.jsonl")
    return [pytest.param(case, id=case["name"]) for case in cases if case["protocol"] == protocol]


# In all streams below ids carry their protocol's prefix, and counts are those of nano's tokens: both are
# put right before the comparison.


@pytest.mark.parametrize("case", stream_cases("chat_completions"))
def test_chat_streams(tokenizer, case):
    recipe = mr.Recipe(tokenizer, system_fingerprint="fp-1", usage_form="finishing")
    # Recorded under another name than the one that its request gives.
    body = {**case["body"], "model": case["events"][0]["model"], "stream": True, "stream_options": {"include_usage": True}}
    events = events_of(recipe.prepare("chat", body, id="mock-id"), tokenizer, case["chunks"])
    for event in events:
        assert event["id"] == "chatcmpl-mock-id"
        event["id"] = "mock-id"
    usage = events[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    events[-1]["usage"] = case["events"][-1]["usage"]
    assert merged(events, chat_arguments) == merged(case["events"], chat_arguments)


@pytest.mark.parametrize("case", stream_cases("messages"))
def test_messages_streams(recipe, tokenizer, case):
    body = {**case["body"], "model": case["events"][0]["message"]["model"], "stream": True}
    answer = recipe.prepare("messages", body, id="mock-id")
    events = events_of(answer, tokenizer, case["chunks"])
    assert events[0]["message"]["id"] == "msg_mock-id"
    events[0]["message"]["id"] = "mock-id"
    assert events[0]["message"]["usage"]["input_tokens"] == len(answer.prompt_ids)
    events[0]["message"]["usage"] = case["events"][0]["message"]["usage"]
    events[-2]["usage"] = case["events"][-2]["usage"]
    for event in events:
        if "signature" in event.get("delta", {}):
            event["delta"]["signature"] = "mock-id"
    expected = case["events"]
    if case["name"] == "msg_partial_tool":
        # On purpose: a call that was cut off is never reported as made.
        expected[-2]["delta"]["stop_reason"] = "max_tokens"
    assert merged(events, messages_arguments) == merged(expected, messages_arguments)


def responses_arguments(event):
    return (event, "delta") if event["type"] == "response.function_call_arguments.delta" else None


# What deepseek-recipe sends of a response; ours has what typed clients expect besides.
RECORDED_MEMBERS = (
    "id", "object", "created_at", "model", "status", "completed_at", "error", "incomplete_details", "output", "usage"
)


def check_and_drop_numbers(events):
    """Numbers count through, whatever pieces arguments are cut into."""
    assert [event.pop("sequence_number") for event in events] == list(range(len(events)))


@pytest.mark.parametrize("case", stream_cases("responses"))
def test_responses_streams(recipe, tokenizer, case):
    body = {**case["body"], "model": case["events"][0]["response"]["model"], "stream": True}
    events = events_of(recipe.prepare("responses", body, id="mock-id"), tokenizer, case["chunks"])
    expected = case["events"]
    check_and_drop_numbers(events)
    check_and_drop_numbers(expected)
    for event in (event for event in events if "response" in event):
        response = event["response"] = {name: event["response"][name] for name in RECORDED_MEMBERS}
        assert response["id"] == "resp_mock-id"
        response["id"] = "mock-id"
    usage = events[-1]["response"]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    events[-1]["response"]["usage"] = expected[-1]["response"]["usage"]
    assert merged(events, responses_arguments) == merged(expected, responses_arguments)


def merged_message(events):
    """What an agent puts together from a stream of Chat Completions."""
    message = {"reasoning": "", "content": "", "calls": [], "finish_reason": None}
    for choice in (choice for event in events for choice in event["choices"]):
        delta = choice["delta"]
        message["reasoning"] += delta.get("reasoning_content") or ""
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            if "id" in call:
                message["calls"].append({"name": call["function"]["name"], "arguments": ""})
            assert call["index"] == len(message["calls"]) - 1
            message["calls"][-1]["arguments"] += call["function"].get("arguments", "")
        message["finish_reason"] = choice.get("finish_reason") or message["finish_reason"]
    for call in message["calls"]:
        call["arguments"] = json.loads(call["arguments"])
    return message


def written(message):
    """The output of a model that means this message; all arguments are texts."""
    text = message["reasoning"] + "</think>" if message["reasoning"] else ""
    text += message["content"]
    for call in message["calls"]:
        text += "\n\n<｜DSML｜ calls>\n" if call is message["calls"][0] else "\n"
        text += f'<｜DSML｜ invoke name="{call["name"]}">\n'
        for key, value in call["arguments"].items():
            text += f'<｜DSML｜ parameter name="{key}" string="true">{value}</｜DSML｜ parameter>\n'
        text += "</｜DSML｜ invoke>"
    return text + ("\n</｜DSML｜ calls>" if message["calls"] else "")


@pytest.mark.parametrize("path", sorted((FIXTURES / "agent-sse").iterdir()), ids=lambda path: path.stem)
def test_agent_traces(recipe, tokenizer, path):
    data = [line.removeprefix("data: ") for line in path.read_text().splitlines() if line]
    assert data[-1] == "[DONE]"
    expected = merged_message([json.loads(text) for text in data[:-1]])
    request = {
        "model": "m",
        "messages": [{"role": "user", "content": "q"}],
        "stream": True,
        "thinking": {"type": "enabled" if expected["reasoning"] else "disabled"},
        "tools": [{"type": "function", "function": {"name": name}} for name in ("list_directory", "read_file")],
    }
    answer = recipe.prepare("chat", request)
    assert merged_message(answer.feed(tokenizer.encode(written(expected), special=True)) + answer.finish()) == expected
