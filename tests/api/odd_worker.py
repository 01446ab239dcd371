"""A text worker with a chat template of the test's, or one that tokenizes only once the test allows it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from octavo_engine.server import text_worker
from octavo_engine.text.chat_template import ChatTemplate
from octavo_engine.text.tokenizer import Tokenizer


def with_template(tokenizer: Tokenizer, source: str) -> None:
    tokenizer.chat_template = ChatTemplate(source, {})


def waiting(tokenizer: Tokenizer, folder: str) -> None:
    """Creates `begun` in the folder, and waits for `go_on`."""
    real = tokenizer.encode

    def encode(text: str, add_special_tokens: bool = True) -> list[int]:
        (Path(folder) / "begun").touch()
        while not (Path(folder) / "go_on").exists():
            time.sleep(0.01)
        return real(text, add_special_tokens)

    tokenizer.encode = encode  # type: ignore[method-assign]


def program(oddity: str, argument: str) -> tuple[str, ...]:
    return (sys.executable, "-m", __name__, oddity, argument)


if __name__ == "__main__":
    load = text_worker.load_tokenizer

    def load_odd(files: object) -> Tokenizer:
        tokenizer = load(files)  # type: ignore[arg-type]
        {"template": with_template, "waiting": waiting}[sys.argv[1]](tokenizer, sys.argv[2])
        return tokenizer

    text_worker.load_tokenizer = load_odd  # type: ignore[assignment]
    text_worker.main()
