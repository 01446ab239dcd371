"""The messages between the server and its text workers, among them the prepared request, serialized with msgspec."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

from octavo_engine.engine.info import EngineInfo
from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.sampling_params import SamplingParams

MIN_TIMEOUT, MAX_TIMEOUT = 0.001, 86_400
"""The bounds of a request's timeout, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """A request's options for turning tokens into the text of an answer."""

    stop: tuple[str, ...] = ()
    """Texts that end an answer."""
    include_stop: bool = False
    """True if the answer includes the stop string or stop token that ended it."""
    include_end: bool = False
    """True if the answer includes the text of the model's own end token."""
    skip_special_tokens: bool = True
    ends: tuple[int, ...] = ()
    """The model's own end tokens among `stop_token_ids`: they are not reported as stop_reason."""
    end_logprobs: bool = False
    """True if log probabilities include the token that ended the answer, although it is not in the text."""


class PooledOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A request's options for turning pooled vectors into an answer."""

    dimensions: int | None = None
    """How many of a vector's first numbers the answer has; None for all."""
    normalize: bool = True
    base64: bool = False
    json_bytes: int = 0
    """The most bytes that the answer's numbers take in JSON; 0 if they are few."""
    queries: int = 0
    """How many of the first prompts are queries; the other prompts are documents. One query is compared with all
    documents, several pair by pair."""
    documents: tuple[str, ...] = ()
    """The documents' texts, if the answer repeats them."""
    top_n: int | None = None
    """How many of the best documents the answer has; None for all."""
    activation: str = ""
    """The function that makes probabilities of a classifier's logits; empty if they are not logits."""
    labels: tuple[str, ...] = ()
    """The names of the classifier's classes."""


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request for generation, checked, rendered and tokenized by a text worker."""

    prompts: tuple[tuple[int, ...], ...]
    echoes: tuple[str, ...]
    """The text that the answers to each prompt begin with: the prompt if the request has `echo`, else nothing."""
    n: int
    """The number of choices for each prompt."""
    sampling: SamplingParams
    """The sampling parameters of the first choice of each prompt."""
    text: TextOptions
    form: AnswerForm
    """The form in which the text of a chat's answers is parsed."""
    prompt_logprobs: int | None = None
    """The number of likeliest tokens that the response reports at each position of the prompts; None for none."""
    scores_echo: bool = False
    """True if an answer that begins with its prompt also has the log probabilities of the prompt."""
    pooled: PooledOptions | None = None
    """The options of a pooling request; None if answers are text."""
    second_texts: tuple[int, ...] = ()
    """The position in each prompt at which the second text of a pair begins; empty if no prompt is a pair."""
    model: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    """True if each event of a stream with `include_usage` has the usage up to then."""
    token_ids: bool = False
    """True if the response has the token ids of prompts and answers in addition to their texts."""
    names_by_id: bool = False
    """True if log probabilities name tokens by their ids instead of their texts."""
    timeout: float | None
    """Seconds."""
    priority: int | None
    cache_salt: str
    repeated: bytes = b"{}"
    """A JSON object: the fields of the request that an answer of /v1/responses repeats."""

    @property
    def sequences(self) -> int:
        """The number of answers, for all prompts together."""
        return len(self.prompts) * self.n

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once however many choices it has."""
        return sum(map(len, self.prompts))


class JSONAnswer(msgspec.Struct, tag="answer", frozen=True):
    """A complete response that needs no generation, such as that of /tokenize."""

    body: bytes
    model: str | None
    """The model that the client named."""
    unknown_fields: list[str] = []
    """Names of fields of this body that the worker has met for the first time, and ignored."""


class Rejected(msgspec.Struct, tag="rejected", frozen=True):
    """The error of a request that cannot be prepared, as the client sees it."""

    status: int
    message: str
    code: str | None
    param: str | None
    model: str | None = None
    """The model that the client named, if the error says what this server's model cannot do. If the server has no model
    of that name, the client gets that error instead."""
    grammar_share: float = 0.0
    """What checking the request's grammars took, as a share of the CPU time that a check may take."""
    unknown_fields: list[str] = []


class Prepared(msgspec.Struct, tag="prepared", frozen=True):
    """A request that can be generated."""

    request: PreparedRequest
    size: int
    """Bytes of the messages to the engine, of which there is one for each answer, and of the request itself."""
    grammar: bytes = b""
    """The digest of the grammar that the answers must follow; empty if there is none."""
    grammar_share: float = 0.0
    """What checking the request's grammar took, as a share of the CPU time that a check may take."""
    unknown_fields: list[str] = []


Result = Prepared | JSONAnswer | Rejected


class Setup(msgspec.Struct, frozen=True):
    """The first message to a worker: the model whose tokenizer it loads."""

    model: str
    revision: str | None
    tool_call_parser: str
    """Name of the format of the model's tool calls, or `auto`."""
    log_format: str = "text"


class Task(msgspec.Struct, frozen=True):
    """A client's body, and the job that a worker does with it."""

    job: str
    """A key of `text_worker.JOBS`."""
    engine: EngineInfo
    body: bytes
    grammar_share: float = 1.0
    """The share of the usual CPU time that checking a new grammar may take; with 0 none is checked."""
    checked_grammars: list[bytes] = []
    """The digests of grammars that other workers have checked since this one's last task."""


GRAMMAR_NOT_CHECKED = "grammar_not_checked"
"""The code, between a worker and the pool, of a request whose grammar would take longer than its key's may now."""
LENGTH = struct.Struct("<I")
"""The prefix of each message: its length in bytes."""

_task_decoder = msgspec.msgpack.Decoder(Task)
_result_decoder: msgspec.msgpack.Decoder[Result] = msgspec.msgpack.Decoder(Result)
_setup_decoder = msgspec.msgpack.Decoder(Setup)
encode = msgspec.msgpack.Encoder().encode


def decode_task(data: bytes | bytearray) -> Task:
    """Decode a task; msgspec.DecodeError if the bytes are not valid."""
    return _task_decoder.decode(data)


def decode_result(data: bytes) -> Result:
    """Decode a result; msgspec.DecodeError if the bytes are not valid."""
    return _result_decoder.decode(data)


def decode_setup(data: bytes | bytearray) -> Setup:
    """Decode a setup; msgspec.DecodeError if the bytes are not valid."""
    return _setup_decoder.decode(data)
