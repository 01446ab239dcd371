"""`octavo-engine generate`: answering a file of prompts offline. A run that was stopped can be resumed.

A line of the input is an object with `prompt` (text or token ids) or `messages`, and any of max_tokens, temperature,
top_p, top_k, min_p, seed, stop, ignore_eos, logprobs ... A line of the output has the input's `index` (and `id`, if it
had one), `text`, `finish_reason` and `usage`, and `logprobs` in the shape of OpenAI's completions if they were asked
for; or it has `error`. Lines come in the order in which answers end.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from octavo_engine.commands.percent_bar import percent_bar
from octavo_engine.config import EngineConfig
from octavo_engine.errors import ConfigurationError
from octavo_engine.llm import LLM, Completion
from octavo_engine.request_checks import check_sampling
from octavo_engine.runner.ranks.plan_codec import sampling_params
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.text.logprobs import text_logprobs

_CHUNK = 1024
"""Prompts that are given to the engine at a time: enough to keep any batch full, few enough for any memory."""
_DEFAULTS: dict[str, Any] = {"max_tokens": 256}
_SAMPLING = {f.name for f in fields(SamplingParams)}
_KNOWN = _SAMPLING | {"id", "prompt", "messages", "stop"}


@dataclass(frozen=True, slots=True)
class Task:
    """One line of the input. If the line is not valid, `error` says why."""

    index: int
    line: dict[str, Any]
    error: str | None = None


@dataclass(slots=True)
class _Output:
    """The open output file, and how many of the lines written to it are errors."""

    file: IO[str]
    errors: int = 0

    def write(self, answer: dict[str, Any]) -> None:
        self.errors += "error" in answer
        self.file.write(json.dumps(answer, ensure_ascii=False) + "\n")
        self.file.flush()


def run(config: EngineConfig, source: Path, target: Path) -> int:
    """Answer every line of `source` that has no answer in `target` yet; return the exit code."""
    done = _finished(target)
    every = list(_read(source))
    tasks = [task for task in every if task.index not in done]
    if not every:
        raise ConfigurationError(f"--input {source} holds no prompts: each line that is not empty is one")
    if not tasks:
        sys.stderr.write(f"{target}: all {len(done)} answers are there already\n")
        return 0
    if done:
        sys.stderr.write(f"{target}: {len(done)} answers are there, {len(tasks)} to go\n")
    settings = {f.name: getattr(config, f.name) for f in fields(config) if f.name != "model"}
    with _opened(target) as file:  # before the model is loaded, which takes longer
        out = _Output(file)
        with percent_bar("loading") as progress:
            llm = LLM(config.model, progress=progress, **settings)
        with tqdm(total=len(tasks), unit=" prompts", disable=None) as bar:
            for start in range(0, len(tasks), _CHUNK):
                _answer(llm, tasks[start : start + _CHUNK], out, bar)
        llm.close()
    failed = f", {out.errors} of them an error instead of an answer" if out.errors else ""
    sys.stderr.write(f"{target}: lines written: {len(tasks)}{failed}\n")
    return 0


def _opened(target: Path) -> IO[str]:
    try:
        # Half of a surrogate pair, which an `id` may have, is written as JSON escapes it: UTF-8 cannot encode it.
        return target.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigurationError(f"--output {target} cannot be written: {error.strerror}") from None


def _finished(target: Path) -> set[int]:
    """Return the indices of the prompts that are answered, and remove a last line that a crash has cut."""
    if not target.is_file():
        return set()
    indices, end = set(), 0
    with target.open("rb") as file:
        for line in file:
            try:
                indices.add(int(json.loads(line)["index"]))
            except (ValueError, KeyError, TypeError):
                if line.endswith(b"\n"):
                    raise ConfigurationError(
                        f"{target} holds a line that `generate` has not written; name another file"
                    ) from None
                break
            if not line.endswith(b"\n"):
                break
            end += len(line)
    with target.open("r+b") as file:
        file.truncate(end)
    return indices


def _read(source: Path) -> Iterator[Task]:
    try:
        lines = source.read_text(encoding="utf-8").split("\n")  # `splitlines` cuts at U+2028 too, which JSON may have
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"--input {source} cannot be read: {why}") from None
    for index, text in enumerate(lines):
        if text.strip():
            yield _parse(index, text)


def _parse(index: int, text: str) -> Task:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Task(index, {}, f"line {index + 1} is not JSON: {error}")
    if not isinstance(line, dict):
        return Task(index, {}, f"line {index + 1} must be an object with either prompt or messages")
    if unknown := sorted(set(line) - _KNOWN):
        return Task(index, line, f"line {index + 1} has unknown keys: {', '.join(map(_with_known, unknown))}")
    if ("prompt" in line) == ("messages" in line):
        return Task(index, line, f"line {index + 1} must be an object with either prompt or messages")
    return Task(index, line)


def _with_known(name: str) -> str:
    """Return a key that is unknown, with the known one for which it may stand."""
    close = difflib.get_close_matches(name, sorted(_KNOWN), 1)
    return f"{name} (did you mean {close[0]}?)" if close else name


def _answer(llm: LLM, tasks: list[Task], out: _Output, bar: Any) -> None:
    """Answer up to _CHUNK tasks. Tasks with the same stop strings are answered in one call of `LLM.generate`."""
    groups: dict[tuple[str, ...], list[tuple[Task, list[int], SamplingParams]]] = {}
    for task in tasks:
        try:
            if task.error is not None:
                raise ValueError(task.error)
            stop = _stop(task.line)
            prepared = (task, _tokens(llm, task.line), _sampling(llm, task.line))
        except (ValueError, TypeError) as error:
            _write(out, llm, task, Completion([], error=str(error)))
            bar.update()
            continue
        groups.setdefault(stop, []).append(prepared)
    for stop, prepared_tasks in groups.items():

        def finish(index: int, completion: Completion, group: Any = prepared_tasks) -> None:
            _write(out, llm, group[index][0], completion)
            bar.update()

        prompts = [tokens for _, tokens, _ in prepared_tasks]
        llm.generate(prompts, [sampling for _, _, sampling in prepared_tasks], stop=stop, on_finish=finish)


def _stop(line: dict[str, Any]) -> tuple[str, ...]:
    stop = line.get("stop") or ()
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(string, str) and string for string in strings):
        raise ValueError("stop must be a text or a list of texts, none of them empty")
    return strings


def _tokens(llm: LLM, line: dict[str, Any]) -> list[int]:
    if "messages" in line:
        return llm.encode_chat(line["messages"])
    if not isinstance(line["prompt"], str | list):
        raise ValueError("prompt must be a text or a list of token ids")
    return llm.encode(line["prompt"])


def _sampling(llm: LLM, line: dict[str, Any]) -> SamplingParams:
    given = {key: value for key, value in line.items() if key in _SAMPLING}
    params = sampling_params(_DEFAULTS | asdict(llm.info.sampling) | given)
    check_sampling(params)  # here, so that a wrong value fails only its own line
    return params


def _write(out: _Output, llm: LLM, task: Task, completion: Completion) -> None:
    answer: dict[str, Any] = {"index": task.index}
    if "id" in task.line:
        answer["id"] = task.line["id"]
    if completion.error is not None:
        answer["error"] = completion.error
    else:
        prompt, output = len(completion.prompt_token_ids), len(completion.token_ids)
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        answer |= {"text": completion.text, "finish_reason": completion.finish_reason, "usage": usage}
        if completion.logprobs:
            shown = completion.logprobs[:-1] if completion.stop_token is not None else completion.logprobs
            answer["logprobs"] = asdict(text_logprobs(shown, llm.tokenizer))
    out.write(answer)
