"""`kubectl octavo run MODEL`: creates the LLMService for a model, and shows progress until it is ready."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from octavo_operator.api.conditions import ConditionType
from octavo_operator.api.names import API_VERSION, KIND
from octavo_operator.kubectl.status import condition_of, replicas_sentence

DEMO = "smollm2"
_LONGEST_NAME = 40
_CLEAR_LINE = "\r\x1b[K"
_QUIET_SECONDS = 15.0
"""The longest time without a line in a pipe, so that a load of minutes does not look like a hang."""


def manifest(model: str, name: str | None, gpus: int | None) -> dict[str, Any]:
    """Return an LLMService of one replica for `model`: smollm2, or a repository of the Hugging Face Hub as OWNER/NAME.

    `name` defaults to one made of the model's, `gpus` to 0 for smollm2 and else to 1.
    """
    source = {"demo": DEMO} if model == DEMO else {"huggingFace": {"repository": model}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name or name_of(model)},
        "spec": {
            "model": {"source": source},
            "accelerator": {"count": (0 if model == DEMO else 1) if gpus is None else gpus},
        },
    }


def name_of(model: str) -> str:
    """Return a name that an LLMService may have, made of a model's: `Qwen/Qwen3-8B` becomes `qwen3-8b`."""
    plain = re.sub("[^a-z0-9]+", "-", model.rpartition("/")[2].lower())
    plain = plain if plain[:1].isalpha() else f"m-{plain}"
    return plain[:_LONGEST_NAME].strip("-")


@dataclass
class ProgressWriter:
    """Writes what an LLMService does: one line that changes on a terminal, else a line for each change of phase, and
    one from time to time while nothing changes.
    """

    out: TextIO
    clock: Callable[[], float] = time.monotonic
    _last: str = ""
    _printed_at: float = 0.0

    def __post_init__(self) -> None:
        """Take the time of its making as the start."""
        self._began = self.clock()

    def write(self, service: Mapping[str, Any]) -> None:
        """Write the state of the service."""
        phase, now = replicas_sentence(service), self.clock()
        if self.out.isatty():
            line = f"{now - self._began:4.0f} s {line_of(service)}"
            self.out.write(_CLEAR_LINE + line[: shutil.get_terminal_size().columns - 1])
        elif phase != self._last or now - self._printed_at >= _QUIET_SECONDS:
            self.out.write(f"{now - self._began:4.0f} s {line_of(service)}\n")
            self._printed_at = now
        self._last = phase
        self.out.flush()

    def end(self) -> None:
        """End the line that changed."""
        if self.out.isatty():
            self.out.write("\n")


def line_of(service: Mapping[str, Any]) -> str:
    """Return a progress line, such as `0 of 1 replicas ready, phase Loading, 43 % of 2.8 GiB: pod llama-8b-1 …`."""
    loading = (service.get("status") or {}).get("loading") or {}
    message = f": {loading['message']}" if loading.get("message") else ""
    return replicas_sentence(service) + message


def wait_until_ready(
    read: Callable[[], Mapping[str, Any]],
    progress: ProgressWriter,
    timeout: float,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Print progress until the service is ready; False if its operator says that it will not be, or time is over."""
    end = progress.clock() + timeout
    while True:
        service = read()
        progress.write(service)
        if condition_of(service, ConditionType.READY).get("status") == "True":
            break
        if condition_of(service, ConditionType.STALLED).get("status") == "True" or progress.clock() > end:
            progress.end()
            return False
        sleep(1)
    progress.end()
    return True
