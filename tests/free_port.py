"""Ports for programs that tests start, which take the port only some seconds later."""

from __future__ import annotations

import socket

_held: list[socket.socket] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 that is given to nobody else as long as this process lives.

    A socket stays bound to it without listening: a program that asks for this very port may listen there if it sets
    SO_REUSEADDR as well, which ours do, and one that asks for any port gets another.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    return int(held.getsockname()[1])
