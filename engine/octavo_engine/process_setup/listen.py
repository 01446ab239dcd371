"""Listening sockets for HTTP. The host `::` means all addresses of the machine, of IPv6 and of IPv4."""

from __future__ import annotations

import errno
import socket

ANYWHERE = "::"
BACKLOG = 4096
"""Connections that the kernel keeps until they are accepted, fewer if net.core.somaxconn is smaller. One more is not
answered: its client tries again after 1 s, then after 3 s. With 2,048, a burst of 4,500 made others wait so."""
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket that listens; OSError or OverflowError if that is not possible.

    `::` accepts IPv4 too, regardless of the system's default, and only IPv4 if the kernel has no IPv6, since a pod's
    address may be of either family.
    """
    try:
        return _listening(host, port)
    except OSError as error:
        if host != ANYWHERE or error.errno not in _NO_IPV6:
            raise
        return _listening("0.0.0.0", port)


def _listening(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == ANYWHERE:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
