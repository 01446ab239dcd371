"""What the tests of hostile clients share: requests, keys, and bytes that are sent as they are."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.api.served import PATIENCE, Served

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}


def raw(server: Served, data: bytes) -> bytes:
    """All that the server answers to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(data)
        try:
            return b"".join(iter(lambda: client.recv(65536), b""))
        except ConnectionResetError:
            return b""


def keys(folder: Path, **limits: int) -> Path:
    path = folder / "keys.yaml"
    small = ", ".join(f"{name}: {value}" for name, value in limits.items())
    path.write_text(f"keys:\n- {{name: small, key: sk-small, {small}}}\n- {{name: other, key: sk-other}}\n")
    return path


def as_key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{name}"}
