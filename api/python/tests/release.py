"""Conversations in the form of the release encoders, turned into the module's own."""


def _tool(given):
    function = given["function"]
    tool = {"name": function["name"], "function": function}
    for key in ("description", "parameters"):
        if key in function:
            tool[key] = function[key]
    return tool


def _part(part):
    if part["type"] == "text":
        return part
    return {"type": "image", "image": part["image_url"]["url"]}


def _message(given):
    message = {key: given[key] for key in ("role", "reasoning_content", "task", "tool_call_id") if key in given}
    content = given.get("content") or ""
    message["content"] = content if isinstance(content, str) else [_part(part) for part in content]
    message["tools"] = [_tool(tool) for tool in given.get("tools", [])]
    message["tool_calls"] = [{"id": call.get("id", ""), **call["function"]} for call in given.get("tool_calls", [])]
    return message


def conversation(body):
    """{thinking_mode, reasoning_effort?, tools?, messages} as a conversation of the module."""
    return {
        "messages": [_message(message) for message in body["messages"]],
        "tools": [_tool(tool) for tool in body.get("tools", [])],
        "thinking": body.get("thinking_mode", "thinking") == "thinking",
        "reasoning_effort": body.get("reasoning_effort"),
    }


# How the release encoders behave where deepseek-recipe and the hosted API differ.
SETTINGS = {"schema_keys": "as-given", "v4_system": "in-place", "after_assistant": "nothing"}
