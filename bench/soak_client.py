"""A user of the soak: streams one answer, and tells how it ended, whatever the server does."""

from __future__ import annotations

import asyncio
import json

from bench.soak_losses import Client

PROMPTS = ("Once upon a time", "The capital of France is", "To be or not to be", "def fibonacci(n):")


async def ask(port: int, prompt: int, tokens: int, client: Client) -> tuple[str, str]:
    """Stream one greedy answer; return how it ended, and its text. `client` records what was seen."""
    asked = {"prompt": PROMPTS[prompt], "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps(asked).encode()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        client.see(f"connect: {error!r}")
        return "refused", ""
    text, end = "", "cut"
    client.port = writer.get_extra_info("sockname")[1]
    try:
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Authorization: Bearer sk-honest\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        status = (await reader.readuntil(b"\r\n")).split(b" ")[1].decode()
        if status != "200":
            content = (await reader.read()).partition(b"\r\n\r\n")[2]
            client.see(content.decode())
            return f"error {status} {json.loads(content)['error']['code']}", ""
        while line := await reader.readline():
            client.see(line.decode())
            if line.startswith(b"data: [DONE]"):
                end = "complete"
            elif line.startswith(b"data: {"):
                said = json.loads(line[6:])
                if "error" in said:
                    end = f"error {said['error']['code']}"
                else:
                    text += "".join(choice["text"] for choice in said["choices"])
        client.see("end of the connection")
    except (OSError, asyncio.IncompleteReadError, IndexError, ValueError) as error:  # ValueError: JSON that is cut
        client.see(f"{error!r}")
        return "cut", text
    finally:
        writer.close()
    return end, text
