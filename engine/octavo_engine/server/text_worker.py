"""The process that prepares requests: it parses and validates JSON, renders the chat template and tokenizes.

Its input comes from clients, and a hostile body or template can take very much time or memory. Therefore each task has
limits of CPU time and memory; the kernel ends a process that exceeds them, and `text_pool` starts another. Since the
process has its own interpreter lock, a long task does not delay streams.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from octavo_engine.engine.info import EngineInfo
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.source import resolve_model
from octavo_engine.process_setup import logs
from octavo_engine.process_setup.freed_memory import return_freed_memory
from octavo_engine.server.anthropic import prepare_messages
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.bodies.unknown_fields import take_unknown
from octavo_engine.server.openai.preparation import prepare_chat, prepare_completion, prepare_tokenize
from octavo_engine.server.openai.responses import prepare_response
from octavo_engine.server.pooling import prepare_pooled
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import (
    GRAMMAR_NOT_CHECKED,
    LENGTH,
    JSONAnswer,
    Prepared,
    PreparedRequest,
    Rejected,
    Result,
    Task,
    decode_setup,
    decode_task,
    encode,
)
from octavo_engine.server.preparation.text_limits import (
    CPU_SECONDS,
    HEADROOM,
    KEPT_MEMORY,
    MAX_PARAMETERS,
    MAX_REQUEST,
    MAX_RESULT,
    NICENESS,
    STACK,
    TOKEN_BYTES,
)
from octavo_engine.structured.grammar_check import (
    CheckImpossibleError,
    CheckPausedError,
    CheckTime,
    digest,
    note_passed,
)
from octavo_engine.structured.vocabulary import outline
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger("octavo.text_workers")

JOBS: Mapping[str, Callable[[LoadedModel, bytes], PreparedRequest | JSONAnswer]] = {
    "chat": prepare_chat.prepare,
    "completion": prepare_completion.prepare,
    "response": prepare_response.prepare,
    "input_tokens": prepare_response.input_tokens,
    "messages": prepare_messages.prepare,
    "count_tokens": prepare_messages.count_tokens,
    "embedding": prepare_pooled.embedding,
    "score": prepare_pooled.score,
    "rerank": prepare_pooled.rerank,
    "classify": prepare_pooled.classify,
    "tokenize": prepare_tokenize.tokenize,
    "detokenize": prepare_tokenize.detokenize,
}

_GENERATING = frozenset({"chat", "completion", "response", "messages"})
"""Jobs of requests that are answered with text."""

_UNFIT = ("unsupported_model", "unsupported_parameter")
"""Codes of errors about what the model cannot do; others with the param `model` are about the field itself."""
_ID_BYTES = 36
"""Bytes that an id in a list takes as a Python object, in the HTTP process and in each answer's copy in the engine."""


def main() -> None:
    """Serve the socket that is standard input until its other end closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server ends this process by closing the socket, after draining
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=0)
    os.nice(NICENESS)
    if not (data := receive(connection)):
        return
    setup = decode_setup(data)
    logs.set_up_engine(setup.log_format)
    try:
        tokenizer = load_tokenizer(resolve_model(setup.model, setup.revision, lambda *_: None, weights=False))
    except ModelLoadError as error:  # the server reads the same files, and reports the error
        sys.exit(error.exit_code)
    with contextlib.suppress(ConnectionError):  # the server ended while the tokenizer was loaded, or a task ran
        serve(connection, tokenizer, setup.tool_call_parser)


def serve(connection: socket.socket, tokenizer: Tokenizer, tool_call_parser: str = "auto") -> None:
    """Answer one task after another until the socket is closed."""
    loaded, resident = _memory()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (STACK if hard < 0 else min(STACK, hard), hard))
    connection.sendall(LENGTH.pack(0))  # ready
    while data := receive(connection):
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # SIGPROF ends the process
        task = decode_task(data)
        del data  # the task has a copy of the body, which may be large
        limit = loaded + HEADROOM + TOKEN_BYTES * task.engine.max_model_len
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        result = encode(answer(tokenizer, task, tool_call_parser))
        signal.setitimer(signal.ITIMER_PROF, 0)
        if len(result) > MAX_RESULT:
            result = encode(_too_large(len(result)))
        connection.sendall(LENGTH.pack(len(result)) + result)
        del task, result
        resident = limit_kept_memory(resident)


def _memory() -> tuple[int, int]:
    """Return the bytes of this process's address space, and those of them that are in memory."""
    size, resident = Path("/proc/self/statm").read_text().split()[:2]
    return int(size) * resource.getpagesize(), int(resident) * resource.getpagesize()


def limit_kept_memory(resident: int) -> int:
    """Return free memory to the kernel if this process has more than KEPT_MEMORY beyond `resident` bytes.

    The result is the `resident` of the next call: what could not be returned is in use, and if it counted as free,
    every short task would pay for an attempt to return it.
    """
    if _memory()[1] <= resident + KEPT_MEMORY:
        return resident
    return_freed_memory()
    return max(resident, _memory()[1])


def answer(tokenizer: Tokenizer, task: Task, tool_call_parser: str = "auto") -> Result:
    """Run a task and return its result; an error is the result of this task, and the process continues."""
    for checked in task.checked_grammars:
        note_passed(checked, outline(tokenizer))
    if task.job in _GENERATING and not task.engine.generates:
        return _rejected(_not_generating(task.engine), task.body)
    check_time = CheckTime(task.grammar_share)
    result = _prepared(LoadedModel(task.engine, tokenizer, tool_call_parser, check_time), task)
    if unknown := take_unknown():
        result = msgspec.structs.replace(result, unknown_fields=unknown)
    if check_time.used and not isinstance(result, JSONAnswer):
        return msgspec.structs.replace(result, grammar_share=check_time.used)
    return result


def _prepared(model: LoadedModel, task: Task) -> Result:
    try:
        found = JOBS[task.job](model, task.body)
    except (APIError, CheckImpossibleError, CheckPausedError) as error:
        return _rejected(error, task.body)
    except MemoryError:
        return Rejected(400, "the request takes too much memory to be read; send less", "request_too_complex", None)
    except RecursionError:
        return Rejected(400, "the request is nested too deep to be read", "request_too_complex", None)
    except Exception:
        log.exception("preparing a request failed in the job %s", task.job)
        return Rejected(500, "the server failed because of a bug; see its log", "internal_error", None)
    return _of_size(found) if isinstance(found, PreparedRequest) else found


def _of_size(request: PreparedRequest) -> Prepared | Rejected:
    """Return the request with its size, or its rejection (400, as it would be too large at any time)."""
    parameters = request.sequences * len(encode(request.sampling))
    ids = (1 + request.sequences) * len(request.sampling.allowed_token_ids) * _ID_BYTES
    size = len(encode(request)) + (request.n - 1) * len(encode(request.prompts)) + parameters + ids
    if size <= MAX_REQUEST and (parameters <= MAX_PARAMETERS or request.sequences == 1):
        grammar = request.sampling.grammar
        return Prepared(request, size, b"" if grammar is None else digest(grammar))
    message = (
        f"the request takes {size} bytes (at most {MAX_REQUEST}), {parameters} of them parameters of its "
        f"{request.sequences} answers (at most {MAX_PARAMETERS}); ask for fewer answers, or give fewer "
        "allowed_token_ids, bad_words or tools, or a shorter grammar"
    )
    return Rejected(400, message, "request_too_complex", None)


def receive(connection: socket.socket) -> bytearray:
    """Return one message; empty if the other end has closed the socket."""
    header = _receive_exactly(connection, LENGTH.size)
    return _receive_exactly(connection, LENGTH.unpack(header)[0]) if header else header


def _receive_exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        if not (part := connection.recv(min(size - len(data), 1 << 20))):
            return bytearray()
        data += part
    return data


def _rejected(error: APIError | CheckImpossibleError | CheckPausedError, body: bytes) -> Rejected:
    if isinstance(error, CheckPausedError):
        return Rejected(429, "new grammars of this key may not take as long now", GRAMMAR_NOT_CHECKED, None)
    if isinstance(error, CheckImpossibleError):
        return Rejected(503, str(error), "preparation_interrupted", None)
    detail = error.detail
    model = _named_model(body) if detail.param == "model" and detail.code in _UNFIT else None
    return Rejected(error.status, detail.message, detail.code, detail.param, model)


class _Named(msgspec.Struct):
    """The only field that is read of a body whose request the model cannot answer."""

    model: str | None = None


def _named_model(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=_Named).model
    except (ValueError, RecursionError):  # not UTF-8, or not JSON
        return None


def _not_generating(engine: EngineInfo) -> APIError:
    gives = "embeddings: use /v1/embeddings" if engine.classifier is None else "classes: use /classify or /v1/score"
    message = f"this model does not generate text, it gives {gives}"
    return APIError(400, message, code="unsupported_model", param="model")


def _too_large(size: int) -> Rejected:
    message = f"the answer would have {size} bytes, more than {MAX_RESULT}; send less text at a time"
    return Rejected(400, message, "answer_too_large", None)


if __name__ == "__main__":
    main()
