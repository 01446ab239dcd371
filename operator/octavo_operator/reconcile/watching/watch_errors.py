"""Errors with which a watch of kopf ends although nothing is wrong in this program, and the sentences that report them.

`Watches` reports them in one line. kopf logs each of them with a traceback, twice, before that, and asyncio logs one of
each further watch that fails meanwhile, as where the CRD is deleted. And where watches are ended while they are being
opened, asyncio logs a traceback of kopf 1.45's `request_cancel_callback` for each: it asserts that a callback has a
current task. The request that the callback would end has ended with its task.
"""

from __future__ import annotations

import logging

import aiohttp
from kopf._cogs.clients.errors import APIError
from kopf._cogs.clients.watching import WatchingError
from kopf._cogs.structs.credentials import LoginError

_EXPECTED = (APIError, WatchingError, LoginError, aiohttp.ClientError, ConnectionError, TimeoutError)
_FAILING_CALLBACK = "stream.<locals>.request_cancel_callback"
_LOGGERS = ("kopf._core.reactor.orchestration", "kopf._core.reactor.running", "asyncio")


def is_expected(error: BaseException | None) -> bool:
    """Return True if an error is the API server's, or that of the connection to it: a traceback would tell nothing."""
    return isinstance(error, _EXPECTED)


def sentence_of(error: BaseException) -> str:
    """Return what an error of a watch says, as a sentence."""
    if isinstance(error, LoginError):
        return "the API server does not accept the operator's credentials"
    if isinstance(error, APIError):
        return f"the API server answers {error.status}: {error.message or 'without a message'}"
    return str(error) or type(error).__name__


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None  # asyncio gives False where there is no error


def _is_logged(record: logging.LogRecord) -> bool:
    """Return True if a record is to be logged; asyncio's are left out only if they are of a task of kopf's."""
    expected = is_expected(_error_of(record))
    return not expected or (record.name == "asyncio" and "/kopf/" not in record.getMessage())


def _is_no_failed_assertion(record: logging.LogRecord) -> bool:
    """Return True unless a record is that of kopf's callback which asserts that it has a current task."""
    failed = isinstance(_error_of(record), AssertionError)
    return not (failed and _FAILING_CALLBACK in record.getMessage())


def use_in_kopf() -> None:
    """Let none of them be logged from now on."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_logged)
    logging.getLogger("asyncio").addFilter(_is_no_failed_assertion)
