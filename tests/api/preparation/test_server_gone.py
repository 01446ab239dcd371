"""Text workers whose server has ended, as on Ctrl-C while a model loads: they end without a word."""

from __future__ import annotations

import socket
import subprocess

import pytest

from octavo_engine.server.preparation.prepared import LENGTH, Setup, encode
from octavo_engine.server.preparation.text_pool import PROGRAM
from tests.api.served import PATIENCE

SETUP = encode(Setup("smollm2", None, "auto"))


@pytest.mark.parametrize("sent", [b"", LENGTH.pack(len(SETUP)) + SETUP], ids=["at once", "while the tokenizer loads"])
def test_a_worker_whose_server_is_gone_ends_without_a_traceback(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs, subprocess.Popen(PROGRAM, stdin=theirs, stderr=subprocess.PIPE) as process:
        ours.sendall(sent)
        ours.close()
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, b"")
