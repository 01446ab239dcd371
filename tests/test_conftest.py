"""The fixture `caplog` of tests/conftest.py."""

import asyncio
import gc
import logging

import pytest


class Unclosed:
    """As aiohttp's session does: reports to its loop when it is freed although nobody closed it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.itself = loop, self

    def __del__(self) -> None:
        self.loop.call_exception_handler({"message": "Unclosed client session"})


async def test_what_an_earlier_test_left_is_not_in_this_ones_log(caplog: pytest.LogCaptureFixture) -> None:
    Unclosed(asyncio.get_running_loop())
    gc.collect()
    assert not caplog.records
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    logging.getLogger("octavo_operator").warning("Unclosed is a word of ours")
    assert caplog.messages == ["Task exception was never retrieved", "Unclosed is a word of ours"]
