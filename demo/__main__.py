"""Runs a sample LLMService like `octavo-operator local`, sends it a question by the `openai` SDK, prints a summary."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from openai import DefaultHttpxClient, OpenAI, OpenAIError

from octavo_operator.api.files import inspect
from octavo_operator.local.engine import LocalEngine
from octavo_operator.local.errors import LocalError
from octavo_operator.local.run_local import run_local

SAMPLE = Path(__file__).parent.parent / "manifests" / "samples" / "smollm2.yaml"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
QUESTION = "In three sentences: what is a library good for?"


@dataclass(frozen=True)
class Answer:
    """The figures of one streamed answer; times in seconds."""

    first_token: float
    total: float
    prompt_tokens: int
    tokens: int


def say(line: str) -> None:
    """Print a line of the demo itself, marked so that it differs from the model's text."""
    print(f"octavo: {line}", flush=True)


def ask(client: OpenAI, question: str) -> Answer:
    """Stream one chat answer to the terminal, after the question, and return its figures; OpenAIError without one."""
    model = client.models.list().data[0].id
    say("sends a question with the openai SDK")
    started = time.perf_counter()
    first, usage = None, None
    with client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
        temperature=0.2,
        seed=1,
        max_tokens=160,
    ) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            if chunk.choices and chunk.choices[0].delta.content:
                if first is None:  # nothing is printed before, as the engine's log lines would come in between
                    first = time.perf_counter()
                    print(f"\nyou:     {question}\n{model}: ", end="")
                print(chunk.choices[0].delta.content, end="", flush=True)
    print("\n")
    ended = time.perf_counter()
    if first is None or usage is None:
        raise OpenAIError("the model gave no answer")
    return Answer(first - started, ended - started, usage.prompt_tokens, usage.completion_tokens)


def summarize(answer: Answer, endpoint: str, ready_after: float) -> None:
    """Print the most important figures."""
    rate = (answer.tokens - 1) / max(1e-9, answer.total - answer.first_token)
    say(f"ready after {ready_after:.1f} s; time to first token {answer.first_token * 1000:.0f} ms; {rate:.1f} tokens/s")
    say(f"{answer.prompt_tokens} prompt tokens, {answer.tokens} answer tokens, in {answer.total:.1f} s")
    say(f"endpoint {endpoint}")


class Interruption:
    """Stops the engine at the first signal; calls that wait for the engine then fail, and the program ends.

    The handler raises no exception: library code that runs at that moment could swallow it.
    """

    def __init__(self) -> None:
        self.engine: LocalEngine | None = None
        self.exit_code: int | None = None
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.exit_code is None:
            say(f"{signal.Signals(number).name}: ends")
        self.exit_code = 128 + number
        if self.engine is not None:
            self.engine.stop()
            self.engine.stop()  # the second call ends it without draining: this program is the only client

    def watch(self, engine: LocalEngine) -> None:
        """Make signals stop `engine` from now on; stop it at once if a signal has already arrived."""
        self.engine = engine
        if self.exit_code is not None:
            engine.stop()


def run(stay: bool, port: int, interruption: Interruption) -> int:
    """Run the demo and return the exit code; with `stay` the server keeps running until Ctrl-C."""
    say(f"running {SAMPLE.relative_to(SAMPLE.parent.parent.parent)}: SmolLM2-135M-Instruct on this machine's CPU")
    (service,) = inspect(SAMPLE).services
    started = time.perf_counter()
    with run_local(service, port) as engine:
        interruption.watch(engine)
        engine.wait_ready(say)
        direct = DefaultHttpxClient(trust_env=False)  # a proxy of the environment does not reach this machine itself
        answer = ask(OpenAI(base_url=engine.endpoint, api_key="none", http_client=direct), QUESTION)
        summarize(answer, engine.endpoint, time.perf_counter() - started - answer.total)
        return keep_serving(engine) if stay else 0


def keep_serving(engine: LocalEngine) -> int:
    """Serve until a signal arrives, then drain."""
    url = engine.endpoint.removesuffix("/v1")
    say(f"serving; playground: {url}/; chat: .venv/bin/octavo-engine chat --temperature 0.2 {url} (Ctrl-C stops)")
    for number in SIGNALS:
        signal.signal(number, lambda *_: engine.stop())
    return engine.supervise()


def main() -> int:
    """Entry point of `python -m demo`."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--stay", action="store_true", help="keep serving after the answer")
    parser.add_argument("--port", type=int, help="port on 127.0.0.1 (default: any free one; 8000 with --stay)")
    args = parser.parse_args()
    interruption = Interruption()
    try:
        return run(args.stay, args.port or (8000 if args.stay else 0), interruption)
    except (LocalError, OpenAIError) as error:
        if interruption.exit_code is not None:
            return interruption.exit_code
        say(str(error))
        return error.exit_code if isinstance(error, LocalError) else 1


if __name__ == "__main__":
    sys.exit(main())
