"""Renders conversations in the V4.1 prompt format, as token ids with training weights.

Written from the format's description (system marker, effort line, thinking header, tools block,
DSML calls, tool results). Only markers that the renderer itself inserts become ids above the base
vocabulary; text that came from the conversation never does.
"""
from __future__ import annotations

import json
from dataclasses import dataclass, field

from .tokenizer import ASSISTANT, BOS, DSML, EOS, SYSTEM, THINK, THINK_END, USER, Tokenizer

PROMPT_WEIGHT = 0.1
EFFORT = {"low": 50, "high": 75, "xhigh": 75, "max": 100}


@dataclass
class Call:
    name: str
    arguments: dict


@dataclass
class Message:
    role: str  # system, user, assistant, tool
    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    trained: bool = True  # assistant only: whether its tokens carry full weight


@dataclass
class Conversation:
    """`effort` applies in thinking mode only. `history` says what becomes of the reasoning of turns
    before the last user message: keep, drop (no thinking header; with tools it is kept all the
    same), or blank (clients that do not send it back: an empty thought)."""

    messages: list[Message]
    thinking: bool = False
    effort: int = 75
    tools: list[dict] = field(default_factory=list)
    json_object: bool = False
    history: str = "keep"


# A segment is (text, is_control, is_target).
Segment = tuple[str, bool, bool]

_TOOLS_HEAD = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
_TOOLS_TAIL = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
_JSON_FORMAT = ("## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
                '{"type": "json_object"}')


def _template(text: str, target: bool = False) -> list[Segment]:
    """Template text: the marker spellings it mentions become control tokens."""
    out: list[Segment] = []
    while text:
        found = [(text.find(s), s) for s in (DSML, THINK, THINK_END) if s in text]
        if not found:
            out.append((text, False, target))
            break
        at, spelling = min(found)
        if at:
            out.append((text[:at], False, target))
        out.append((spelling, True, target))
        text = text[at + len(spelling):]
    return out


def python_json(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tools_block(tools: list[dict]) -> list[Segment]:
    schemas = "\n".join(python_json({"name": t["name"], "description": t.get("description", ""),
                                     "parameters": t.get("parameters", {})}) for t in tools)
    return _template(_TOOLS_HEAD) + [(schemas, False, False)] + _template(_TOOLS_TAIL)


def _calls_block(calls: list[Call], target: bool) -> list[Segment]:
    out: list[Segment] = [("\n\n<", False, target), (DSML, True, target), (" calls>\n", False, target)]
    for call in calls:
        out += [("<", False, target), (DSML, True, target),
                (f' invoke name="{call.name}">\n', False, target)]
        for key, value in call.arguments.items():
            is_string = isinstance(value, str)
            text = value if is_string else python_json(value)
            flag = "true" if is_string else "false"
            out += [("<", False, target), (DSML, True, target),
                    (f' parameter name="{key}" string="{flag}">{text}</', False, target),
                    (DSML, True, target), (" parameter>\n", False, target)]
        if not call.arguments:
            out.append(("\n", False, target))
        out += [("</", False, target), (DSML, True, target), (" invoke>\n", False, target)]
    return out + [("</", False, target), (DSML, True, target), (" calls>", False, target)]


def _system_segments(conversation: Conversation, content: str) -> list[Segment]:
    out: list[Segment] = [(content, False, False)]
    if conversation.tools:
        out += [("\n\n", False, False)] + _tools_block(conversation.tools)
    if conversation.json_object:
        out.append(("\n\n" + _JSON_FORMAT, False, False))
    return out


def _assistant_segments(message: Message, thinking: bool, history: str) -> list[Segment]:
    out: list[Segment] = [(ASSISTANT, True, False)]
    target = message.trained
    if thinking and history == "keep":
        out += [(THINK, True, False), (message.reasoning, False, target), (THINK_END, True, target)]
    elif thinking and history == "blank":
        out += [(THINK, True, False), (THINK_END, True, False)]
    else:
        out.append((THINK_END, True, False))
    out.append((message.content, False, target))
    if message.calls:
        out += _calls_block(message.calls, target)
    return out + [(EOS, True, target)]


def segments(conversation: Conversation, generate: bool = False) -> list[Segment]:
    """The whole conversation; with `generate` it ends in the header of the next assistant turn."""
    messages = list(conversation.messages)
    out: list[Segment] = [(BOS, True, False)]
    effort = ""
    if conversation.thinking:
        effort = (f"Reasoning Effort: {conversation.effort} (range 1-100, the higher the value, "
                  "the more thorough the reasoning)\n\n")
    first = messages.pop(0).content if messages and messages[0].role == "system" else None
    if first is not None or effort or conversation.tools or conversation.json_object:
        out += [(SYSTEM, True, False), (effort, False, False)]
        out += _system_segments(conversation, first or "")
    last_user = max((i for i, m in enumerate(messages) if m.role in ("user", "system")), default=-1)
    in_user = False
    for i, message in enumerate(messages):
        if message.role in ("user", "tool"):
            out.append(("\n\n", False, False) if in_user else (USER, True, False))
            text = message.content
            if message.role == "tool":
                text = f"<tool_result>{text}</tool_result>"
            out.append((text, False, False))
            in_user = True
            continue
        in_user = False
        if message.role == "system":
            out += [(SYSTEM, True, False), (message.content, False, False)]
        elif message.role == "assistant":
            history = conversation.history
            if i > last_user or (conversation.tools and history == "drop"):
                history = "keep"
            out += _assistant_segments(message, conversation.thinking, history)
        else:
            raise ValueError(f"unknown role {message.role!r}")
    if generate:
        out += [(ASSISTANT, True, False), (THINK if conversation.thinking else THINK_END, True, False)]
    return _join(out)


def _join(parts: list[Segment]) -> list[Segment]:
    """Merges neighbouring text runs of one kind, because cutting a run changes its ids.

    A run that is partly target is split at the change: prompt and answer are always separated by a
    control token, so this never happens inside a run that a server would encode whole.
    """
    out: list[Segment] = []
    for text, control, target in parts:
        if not text:
            continue
        if out and not control and not out[-1][1] and out[-1][2] == target:
            out[-1] = (out[-1][0] + text, False, target)
        else:
            out.append((text, control, target))
    return out


def text_of(conversation: Conversation, generate: bool = False) -> str:
    return "".join(text for text, _, _ in segments(conversation, generate))


def encode(tokenizer: Tokenizer, conversation: Conversation,
           generate: bool = False) -> tuple[list[int], list[float]]:
    """Ids and weights; weight i belongs to predicting token i (the first token's is unused)."""
    ids: list[int] = []
    weights: list[float] = []
    for text, control, target in segments(conversation, generate):
        new = [tokenizer.token_id(text)] if control else tokenizer.encode_plain(text)
        ids += new
        weights += [1.0 if target else PROMPT_WEIGHT] * len(new)
    return ids, weights
