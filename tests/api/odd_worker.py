"""A text worker that misbehaves as its prompt says: waits, computes, takes memory, is killed, renders a hostile
template."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from octavo_engine.server import text_worker
from octavo_engine.text.chat_template import ChatTemplate
from octavo_engine.text.tokenizer import Tokenizer

PROGRAM = (sys.executable, "-m", __name__)
TEMPLATE = """{%- if messages[0].content == "nested loops" -%}
{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}
{%- elif messages[0].content == "long text" -%}{{ "a" * 10**9 }}
{%- elif messages[0].content == "long range" -%}{% for i in range(10**9) %}{% endfor %}
{%- elif messages[0].content == "quadratic" -%}{{ ("{" ~ ":" * 60000).format(1) }}
{%- else -%}{{ messages[0].content }}{%- endif -%}"""


def obey(text: str) -> None:
    """`wait FOLDER` adds a character to `begun` in the folder, and waits for `go_on`."""
    match text.split():
        case ["wait", folder]:
            with (Path(folder) / "begun").open("a") as file:
                file.write("x")
            while not (Path(folder) / "go_on").exists():
                time.sleep(0.01)
        case ["compute"]:
            while True:
                pass
        case ["be", "killed", "by", name]:
            if name == "SIGHUP":  # ignored by what nohup starts
                signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.Signals[name])
        case ["take", "memory"]:
            bytearray(300 << 20)


if __name__ == "__main__":
    load = text_worker.load_tokenizer

    def load_odd(files: object) -> Tokenizer:
        tokenizer = load(files)  # type: ignore[arg-type]
        encode = tokenizer.encode

        def obey_first(text: str, add_special_tokens: bool = True, *, continued: bool = False) -> list[int]:
            obey(text)
            return encode(text, add_special_tokens, continued=continued)

        tokenizer.encode = obey_first  # type: ignore[method-assign]
        tokenizer.chat_template = ChatTemplate(TEMPLATE, {})
        return tokenizer

    text_worker.load_tokenizer = load_odd  # type: ignore[assignment]
    text_worker.CPU_SECONDS = 0.5  # type: ignore[attr-defined]
    text_worker.main()
