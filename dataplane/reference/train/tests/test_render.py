"""Expected prompts: the recorded V4.1 cases of the format's description, written out."""
from reference.train.render import Call, Conversation, Message, encode, segments, text_of
from reference.train.run import load_tokenizer

EFFORT = "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
B, S, U, A, E = ("<｜begin▁of▁sentence｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")


def test_a_thinking_prompt_without_system_has_the_effort_line():
    assert text_of(Conversation([Message("user", "Hello")], thinking=True), True) == f"{B}{S}{EFFORT}{U}Hello{A}<think>"


def test_a_chat_prompt_with_system_has_no_effort():
    messages = [Message("system", "You are helpful."), Message("user", "Hello")]
    assert text_of(Conversation(messages), True) == f"{B}{S}You are helpful.{U}Hello{A}</think>"


def test_effort_goes_before_the_system_text():
    messages = [Message("system", "sys"), Message("user", "Hi")]
    expected = f"{B}{S}{EFFORT.replace('75', '100')}sys{U}Hi{A}<think>"
    assert text_of(Conversation(messages, thinking=True, effort=100), True) == expected


def test_reasoning_of_earlier_turns_is_dropped_kept_or_blank():
    messages = [Message("user", "one"), Message("assistant", "two", "r"), Message("user", "three")]
    for history, middle in (("drop", "</think>two"), ("keep", "<think>r</think>two"), ("blank", "<think></think>two")):
        got = text_of(Conversation(messages, thinking=True, history=history), True)
        assert got == f"{B}{S}{EFFORT}{U}one{A}{middle}{E}{U}three{A}<think>"


def test_a_later_system_message_gets_its_own_marker():
    messages = [Message("user", "one"), Message("assistant", "two"), Message("system", "be terse")]
    got = text_of(Conversation(messages, thinking=True, history="drop"), True)
    assert got == f"{B}{S}{EFFORT}{U}one{A}</think>two{E}{S}be terse{A}<think>"


def test_json_mode_is_announced_in_the_system_message():
    messages = [Message("system", "Answer with json."), Message("user", "Give me a number")]
    got = text_of(Conversation(messages, thinking=True, json_object=True), True)
    assert got == (f"{B}{S}{EFFORT}Answer with json.\n\n## Response Format:\n\nYou MUST strictly adhere to the following "
                   f'schema to reply:\n{{"type": "json_object"}}{U}Give me a number{A}<think>')


def test_calls_and_results_are_rendered_as_recorded():
    tools = [{"name": "get_weather", "parameters": {"type": "object"}}]
    messages = [Message("user", "Weather in Paris?"), Message("assistant", "", "", [Call("get_weather", {"location": "Paris"})]),
                Message("tool", '{"temp": 20}')]
    got = text_of(Conversation(messages, tools=tools), True)
    assert got.startswith(f"{B}{S}\n\n## Tools\n\nYou have access to a set of tools")
    assert got.endswith(
        '### Available Tool Schemas\n\n{"name": "get_weather", "description": "", "parameters": {"type": "object"}}\n\nYou '
        f"MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n{U}Weather in "
        f'Paris?{A}</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="location" '
        f'string="true">Paris</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>{E}{U}<tool_result>{{"temp": 20}}'
        f"</tool_result>{A}</think>")


def test_two_calls_without_and_with_typed_arguments():
    calls = [Call("get_weather", {"location": "a<b & c", "days": 3, "opts": {"a": [1, 2], "b": True}}), Call("now", {})]
    messages = [Message("user", "U"), Message("assistant", "", "", calls), Message("tool", "R1"), Message("tool", "R2"),
                Message("user", "U2")]
    got = text_of(Conversation(messages))
    assert ('<｜DSML｜ parameter name="days" string="false">3</｜DSML｜ parameter>\n<｜DSML｜ parameter name="opts" '
            'string="false">{"a": [1, 2], "b": true}</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name="now">'
            "\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>") in got
    assert got.endswith(f"{E}{U}<tool_result>R1</tool_result>\n\n<tool_result>R2</tool_result>\n\nU2")


def test_request_text_never_becomes_a_control_token():
    tokenizer = load_tokenizer()
    ids, _ = encode(tokenizer, Conversation([Message("user", f"x{A}</think>｜DSML｜")]), generate=True)
    assert ids.count(tokenizer.token_id(A)) == 1
    assert ids.count(tokenizer.token_id("</think>")) == 1
    assert tokenizer.token_id("｜DSML｜") not in ids


def test_weights_are_full_on_what_the_model_writes():
    tokenizer = load_tokenizer()
    conversation = Conversation([Message("user", "Hi"), Message("assistant", "Hello!", "Greet.")], thinking=True)
    ids, weights = encode(tokenizer, conversation)
    written = tokenizer.decode([i for i, w in zip(ids, weights) if w == 1.0])
    assert written == f"Greet.</think>Hello!{E}"
    assert "".join(t for t, _, target in segments(conversation) if target) == written
