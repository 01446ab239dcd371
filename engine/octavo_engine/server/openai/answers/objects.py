"""The objects of answers and of stream chunks in OpenAI's API, with its exact keys."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from octavo_engine.sampling_params import SamplingDefaults
from octavo_engine.server.generation.usage import Usage
from octavo_engine.text.logprobs import PromptLogprobs, TextLogprobs


class TopLogprob(msgspec.Struct):
    """A token with its log probability and its bytes, which may be part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(msgspec.Struct):
    """The log probability of one token of a chat answer, and those of the likeliest tokens at its position."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log probabilities of a chat answer. `refusal` is always None: refusals are not recognised as such."""

    content: list[ContentLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct):
    """A call's function and arguments, or what a chunk adds to them."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class CustomCall(msgspec.Struct):
    """The custom tool that is called and its input, or what a chunk adds to it."""

    name: str | UnsetType = UNSET
    input: str = ""


class ToolCall(msgspec.Struct):
    """One call of a tool: of a function, or of a custom tool."""

    id: str
    type: str
    function: FunctionCall | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct):
    """The part of one tool call that a chunk adds. The first one has the call's id and its tool's type and name."""

    index: int
    function: FunctionCall | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class AssistantMessage(msgspec.Struct, kw_only=True):
    """The message in which a chat's answer is sent."""

    role: str = "assistant"
    content: str | None
    refusal: str | None = None
    annotations: list[str] = []
    reasoning_content: str | UnsetType = UNSET
    """The reasoning under DeepSeek's name; `reasoning` has the same text under vLLM's name."""
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
    """The ids of all generated tokens. This field and the others of its name are vLLM's."""


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
    service_tier: str | UnsetType = UNSET
    """Always `default`, in complete chats."""


class Model(msgspec.Struct, kw_only=True):
    """One entry of /v1/models."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    max_model_len: int
    default_sampling_params: SamplingDefaults | None = None
    """The values of parameters that a request omits; None for a model that generates no text."""


class ModelList(msgspec.Struct, kw_only=True):
    """The list of /v1/models."""

    object: str = "list"
    data: list[Model]


encode = msgspec.json.Encoder().encode
