"""Prompts and answers of DeepSeek V4 and V4.1, as Millrace serves them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Protocol = Literal["chat", "responses", "messages"]
Encoding = Literal["v4", "v41"]
Stage = Literal["reasoning", "answer", "tool_block"]
Reason = Literal["stop", "length"]
Request = Mapping[str, Any] | str | bytes

class RecipeError(ValueError):
    """A request, text or file that cannot be taken."""

    message: str
    field: str  # path of the field at fault, "" when there is none
    code: str  # for machines, such as "invalid_type"
    status: str  # such as "invalid_argument"

class Tokenizer:
    """A Hugging Face tokenizer.json of the byte-level BPE family. Any number of threads may use one."""

    def __init__(self, path: str) -> None: ...
    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text, by the base vocabulary alone; with special=True the spellings of added
        tokens stand for these tokens. Other threads run meanwhile."""
    def count(self, text: str, *, special: bool = False) -> int:
        """len(encode(text)), without the list."""
    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD."""
    def control_token(self, spelling: str) -> int | None:
        """The id of an added token."""
    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token stands for; none for an id without a token."""
    @property
    def id_bound(self) -> int:
        """One past the highest id that has a token."""

class Prompt:
    """A rendered prompt."""

    @property
    def text(self) -> str:
        """The prompt, control tokens spelled out."""
    @property
    def segments(self) -> list[tuple[str, bool]]:
        """Its parts as (text, is_control): only a control part becomes a control token."""
    @property
    def stage(self) -> Stage:
        """Where the output begins."""
    @property
    def images(self) -> list[str]:
        """References of its images, in the order of their places."""
    def encode(self) -> list[int]:
        """Its token ids. Other threads run meanwhile."""
    def count(self) -> int:
        """How many ids encode() would give. Other threads run meanwhile."""

class Answer:
    """The answer to one request: feed() and then finish() give its protocol's events, complete() gives
    its whole object. Use one of the two ways."""

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt."""
    @property
    def stream(self) -> bool:
        """The request asks for a stream."""
    @property
    def is_done(self) -> bool:
        """More tokens would change nothing: a stop string was found, or the calls are over."""
    def feed(
        self,
        ids: Sequence[int],
        *,
        logprobs: Sequence[float] = ...,
        top_logprobs: Sequence[Sequence[tuple[int, float]]] = ...,
    ) -> list[dict[str, Any]]:
        """The events that these tokens cause; the first call gives the opening ones as well."""
    def finish(self, reason: Reason = "stop") -> list[dict[str, Any]]:
        """The events that end the stream."""
    def complete(
        self,
        ids: Sequence[int],
        reason: Reason = "stop",
        *,
        logprobs: Sequence[float] = ...,
        top_logprobs: Sequence[Sequence[tuple[int, float]]] = ...,
    ) -> dict[str, Any]:
        """The protocol's object for an answer of these tokens."""

class ToolEvent(TypedDict):
    kind: Literal["begin", "arguments", "end"]
    text: str  # of begin the tool's name, of arguments a piece of JSON

class Delta(TypedDict):
    reasoning: str
    text: str
    tool_events: list[ToolEvent]

class LastDelta(Delta):
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop: str  # the stop string that was found, "" when none was

class OutputParser:
    """Reads a model's output: reasoning, answer, tool calls. However ids are grouped into calls of
    feed(), the deltas add up to the same."""

    def feed(self, ids: Sequence[int]) -> Delta:
        """What may be told now."""
    def finish(self, reason: Reason = "stop") -> LastDelta:
        """What was held back, and how the output ended."""
    @property
    def is_done(self) -> bool:
        """More tokens would change nothing."""
    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far."""

class Recipe:
    """The rules of one model: requests to prompts, outputs to answers.

    Requests are dicts, or JSON as str or bytes; protocols() lists what they may be of."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        encoding: Encoding = "v41",
        model: str | None = None,
        system_fingerprint: str = "",
        **settings: str,
    ) -> None:
        """Further arguments are settings() by name. Without a model, it is called whatever a request
        calls it."""
    def convert(self, protocol: Protocol, request: Request) -> dict[str, Any]:
        """{"conversation", "sampling", "parallel_tool_calls", "stream"} of a request."""
    def render(self, protocol: Protocol, request: Request) -> Prompt:
        """The prompt of a request."""
    def render_conversation(self, conversation: Request) -> Prompt:
        """The prompt of a conversation in the form that convert() gives."""
    def count(self, protocol: Protocol, request: Request) -> int:
        """Tokens of a request's prompt. Other threads run meanwhile."""
    def prepare(
        self, protocol: Protocol, request: Request, *, id: str = "recipe", created: int = 0
    ) -> Answer:
        """The Answer to a request, to be given an engine's tokens. id and created (Unix time) name it in
        its protocol. Other threads run meanwhile."""
    def parser(
        self,
        *,
        stage: Stage = "answer",
        tools: Sequence[str] | None = None,
        stop: Sequence[str] = (),
        parallel_tool_calls: bool = True,
    ) -> OutputParser:
        """A parser outside of any protocol. Without a list of tools (which may be empty), tool markup is
        text."""

def settings() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name of each setting -> (its default, all its values)."""

def protocols() -> list[str]:
    """Names of the protocols."""
