"""Forwards connections from a socket of the host to a port in the node's network: `python -I forward.py FD PORT`.

The process that started the cluster has opened the listening socket FD in the host's network. This program runs in the
node's network, where it connects to 127.0.0.1:PORT. So no further process runs on the host, and no port is guessed.
"""

import asyncio
import contextlib
import socket
import sys


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    with contextlib.closing(writer), contextlib.suppress(OSError):
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(inner_writer):
            await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))


async def main(descriptor: int, port: int) -> None:
    listener = socket.socket(fileno=descriptor)
    server = await asyncio.start_server(lambda reader, writer: forward(reader, writer, port), sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
