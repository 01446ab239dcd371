"""This machine's own addresses, since not every test machine has IPv6."""

from __future__ import annotations

import socket


def loopbacks() -> list[str]:
    """127.0.0.1, and ::1 if the machine has IPv6."""
    with socket.socket(socket.AF_INET6) if socket.has_ipv6 else socket.socket() as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return ["127.0.0.1"]
    return ["127.0.0.1", "::1"]
