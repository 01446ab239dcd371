"""Answers and stream chunks of OpenAI's API, with its exact keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from octavo_engine.text.logprobs import PromptLogprobs, TextLogprobs


class PromptTokensDetails(msgspec.Struct):
    """The origin of the prompt's tokens."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    """The use of the answers' tokens."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens that were read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = msgspec.field(default_factory=CompletionTokensDetails)


UsageSoFar = Callable[[], Usage]
"""Counts the tokens until now: a stream calls it where a chunk shows them, since counting costs more than a chunk."""


class TopLogprob(msgspec.Struct):
    """A token with its log probability and its bytes, which may be part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(msgspec.Struct):
    """One token of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log probabilities of a chat answer. A refusal has none here: it is text like any other."""

    content: list[ContentLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct):
    """A call's function and arguments, or what a chunk adds to them."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCall(msgspec.Struct):
    """One call of a tool."""

    id: str
    function: FunctionCall
    type: str = "function"


class ToolCallDelta(msgspec.Struct):
    """The part of one tool call that a chunk adds. The first one has the call's id and its function's name."""

    index: int
    function: FunctionCall
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class AssistantMessage(msgspec.Struct, kw_only=True):
    """The model's message."""

    role: str = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    """The reasoning, by DeepSeek's name; `reasoning` is vLLM's."""
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One answer of a chat completion."""

    index: int
    message: AssistantMessage
    finish_reason: str | None
    logprobs: ChatLogprobs | None = None
    stop_reason: int | str | None = None
    token_ids: Sequence[int] | UnsetType = UNSET
    """All generated tokens, in vLLM's place; so are the other fields of this name."""


class Delta(msgspec.Struct):
    """The part of a message that a chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """The part of one answer that a chunk adds."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class TextChoice(msgspec.Struct):
    """One text completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class Completion(msgspec.Struct):
    """An answer or a chunk of one; `object` says which kind. `id`, `created` and `model` are the same on all chunks."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice] | list[ChatChunkChoice] | list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    """Log probabilities of a chat's prompt, which all choices share."""
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    """The tokens of a chat's prompt; of a stream, in the chunks that begin its choices."""
    system_fingerprint: str | None = None


class Model(msgspec.Struct, kw_only=True):
    """One entry of /v1/models."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    """/v1/models."""

    object: str = "list"
    data: list[Model]


encode = msgspec.json.Encoder().encode
