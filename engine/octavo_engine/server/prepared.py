"""The messages between the server and its text workers, among them the prepared request: msgspec, never pickle."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

from octavo_engine.engine.info import EngineInfo
from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """The options for turning tokens into the text of an answer."""

    stop: tuple[str, ...] = ()
    """Texts that end an answer."""
    include_stop: bool = False
    """Whether the answer keeps the text that ended it."""
    include_end: bool = False
    """Whether it keeps the text of the model's own end token too."""
    skip_special_tokens: bool = True
    ends: tuple[int, ...] = ()
    """The model's own end tokens among `stop_token_ids`: they are not reported as stop_reason."""
    end_logprobs: bool = False
    """Whether log probabilities are reported of the token that ended an answer as well, although it is no text."""


class PooledOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options for turning a prompt's vectors into an answer."""

    dimensions: int | None = None
    """Their first so many numbers; None for all."""
    normalize: bool = True
    base64: bool = False
    queries: int = 0
    """The number of first prompts that are compared with the others: one with each, or pair by pair."""
    documents: tuple[str, ...] = ()
    """The texts of the others, where the answer repeats them."""
    top_n: int | None = None
    """The number of best documents in the answer; None for all."""
    activation: str = ""
    """The function that makes probabilities of a classifier's logits; empty if they are not logits."""
    labels: tuple[str, ...] = ()
    """The names of its classes."""


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request for generation, checked, rendered and tokenized by a text worker."""

    prompts: tuple[tuple[int, ...], ...]
    echoes: tuple[str, ...]
    """The text that each prompt's answers begin with: the prompt if the client wants it back, else nothing."""
    n: int
    """Choices for each prompt."""
    sampling: SamplingParams
    """The sampling parameters of the first choice of each prompt."""
    text: TextOptions
    form: AnswerForm
    """The form in which the text of a chat's answers is parsed."""
    prompt_logprobs: int | None = None
    """The number of likeliest tokens that are reported at each position of the prompts, beside the answers; None for
    none."""
    scores_echo: bool = False
    """Whether the log probabilities of an answer begin with those of the prompt that it begins with."""
    pooled: PooledOptions | None = None
    """None: answers are text."""
    second_texts: tuple[int, ...] = ()
    """The position in each prompt at which the second text of a pair begins; empty if no prompt is a pair."""
    model: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    """Whether each chunk of a stream with `include_usage` says the usage so far."""
    token_ids: bool = False
    """Whether the answer has the token ids of prompts and answers beside their texts."""
    names_by_id: bool = False
    """Whether log probabilities name tokens by their ids instead of their texts."""
    timeout: float | None
    """Seconds."""
    priority: int | None
    cache_salt: str
    repeated: bytes = b"{}"
    """A JSON object: the fields of the request that an answer of /v1/responses repeats."""

    @property
    def sequences(self) -> int:
        """The number of answers."""
        return len(self.prompts) * self.n

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once however many choices it has."""
        return sum(map(len, self.prompts))


class JSONAnswer(msgspec.Struct, tag="answer", frozen=True):
    """A complete answer that needs no model: of /tokenize and /detokenize."""

    body: bytes
    model: str | None
    """The model that the client named."""


class Rejected(msgspec.Struct, tag="rejected", frozen=True):
    """The error of a request that cannot be prepared, as the client sees it."""

    status: int
    message: str
    code: str | None
    param: str | None


class Prepared(msgspec.Struct, tag="prepared", frozen=True):
    """A request that can be generated."""

    request: PreparedRequest
    size: int
    """Bytes of its messages to the engine, one for each answer, and of what its answer repeats."""


Result = Prepared | JSONAnswer | Rejected


class Setup(msgspec.Struct, frozen=True):
    """A worker's first message: whose tokenizer to load."""

    model: str
    revision: str | None
    tool_call_parser: str
    """Name of the format of the model's calls of tools, or `auto`."""


class Task(msgspec.Struct, frozen=True):
    """A body as a client sent it, and what is to be made of it."""

    job: str
    """A key of `text_worker.JOBS`."""
    engine: EngineInfo
    body: bytes


LENGTH = struct.Struct("<I")
"""Comes before each message: how many bytes it has."""

_task_decoder = msgspec.msgpack.Decoder(Task)
_result_decoder: msgspec.msgpack.Decoder[Result] = msgspec.msgpack.Decoder(Result)
_setup_decoder = msgspec.msgpack.Decoder(Setup)
encode = msgspec.msgpack.Encoder().encode


def decode_task(data: bytes) -> Task:
    """A task from its bytes; msgspec.DecodeError otherwise."""
    return _task_decoder.decode(data)


def decode_result(data: bytes) -> Result:
    """A result from its bytes; msgspec.DecodeError otherwise."""
    return _result_decoder.decode(data)


def decode_setup(data: bytes) -> Setup:
    """A setup from its bytes; msgspec.DecodeError otherwise."""
    return _setup_decoder.decode(data)
