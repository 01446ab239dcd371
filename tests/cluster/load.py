"""Clients of a model, run in a pod: each streams one answer after another until /tmp/stop or /tmp/stop-<kind> appears.

They print one JSON line for each answer: the kind of client (`short` or `long`), when the answer began and ended
(seconds of the clock), the error if it was lost, and whether the client ends with it. Requests are not repeated: an
answer that is not complete is lost.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import openai

STOP = Path("/tmp/stop")
PRINTING = threading.Lock()


def user(client: openai.OpenAI, model: str, kind: str, tokens: int, first: int, seconds: float = 60) -> None:
    """Ask for `first` tokens, then for `tokens` each time, or for as many as come in `seconds` at the last pace."""
    wanted, leaves = first, False
    while not leaves:
        began, lost = time.time(), None
        try:
            stream_answer(client, model, wanted)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a lost request
            lost = f"{type(error).__name__}: {error}"
            time.sleep(0.1)
        ended = time.time()
        leaves = STOP.exists() or STOP.with_name(f"stop-{kind}").exists()
        with PRINTING:
            print(json.dumps({"user": kind, "began": began, "ended": ended, "lost": lost, "last": leaves}), flush=True)
        wanted = min(tokens, max(1, int(wanted * seconds / (ended - began))))


def stream_answer(client: openai.OpenAI, model: str, tokens: int) -> None:
    """One streamed answer, which must have all its tokens and end as the API says it does."""
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name three colours."}],
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    reason, generated = None, 0
    for chunk in stream:
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
        if chunk.usage:
            generated = chunk.usage.completion_tokens
    if reason != "length" or generated != tokens:
        raise ValueError(f"the stream ended early: {generated} of {tokens} tokens, finish_reason {reason}")


def main(base_url: str, model: str, long_tokens: int, long_seconds: int, long_users: int) -> None:
    """Two users of short answers and some of long ones, so many tokens or seconds, who do not end at the same time."""
    client = openai.OpenAI(base_url=base_url, api_key="none", timeout=300, max_retries=0)
    firsts = [long_tokens * part // (4 * long_users) for part in range(1, long_users + 1)]
    users = [("short", 4, 4, 60)] * 2 + [("long", long_tokens, first, long_seconds) for first in firsts]
    threads = [threading.Thread(target=user, args=[client, model, *each]) for each in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
