"""Users of a model, run in a pod: each streams one answer after the other until /tmp/stop appears, and counts.

Prints one JSON line at the end: answers, and what went wrong with those that were lost. Ends with 1 if any was.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import openai

STOP = Path("/tmp/stop")


def user(client: openai.OpenAI, model: str, answers: list[str], lost: list[str]) -> None:
    while not STOP.exists():
        try:
            answers.append(one_answer(client, model))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a lost request
            lost.append(f"{type(error).__name__}: {error}")


def one_answer(client: openai.OpenAI, model: str) -> str:
    """A streamed answer, which must end as the API says it does."""
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name three colours."}],
        max_tokens=4,
        temperature=0,
        stream=True,
    )
    text, reason = "", None
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    if not text or reason not in ("stop", "length"):
        raise ValueError(f"the stream ended early: {text!r}, finish_reason {reason}")
    return text


def main(base_url: str, model: str, users: int) -> int:
    answers: list[str] = []
    lost: list[str] = []
    client = openai.OpenAI(base_url=base_url, api_key="none", timeout=120, max_retries=0)
    threads = [threading.Thread(target=user, args=[client, model, answers, lost]) for _ in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"answers": len(answers), "lost": lost}))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
