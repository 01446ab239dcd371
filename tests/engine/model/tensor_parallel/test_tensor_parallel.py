"""Several ranks behind `octavo-engine serve`: the tokens of one rank, and the end of all when one of them ends.

That this takes less than five seconds follows from the limits of each part, which test_ranks.py adds up.

The models served here have heads that are divided unevenly, with biases, and a KV head for each of two ranks.
test_shard.py compares the logits of every configuration by two and four ranks with those of one, among them tied
embeddings and a KV head that all ranks have; tests/cluster/test_tensor_parallel.py serves SmolLM2 by two ranks.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from checkpoints import CONFIGURATIONS, SIZES, UNEVEN, reference_model, save, save_words
from failed_starts import assert_fails

from octavo_engine.llm import LLM
from octavo_engine.sampling_params import SamplingParams
from tests.engine.helpers.pretended import PretendedMasks, PretendedProposer
from tests.free_port import free_port
from tests.processes import alive, command

ENGINE = Path(sys.executable).parent / "octavo-engine"
ENGINE_PROCESS, RANK_PROCESS = "octavo_engine.engine.process", "octavo_engine.engine.startup.rank"
PROMPTS = [[(29 * i + j * j) % 131 for j in range(20 + 5 * i)] for i in range(10)]
TOKENS = 32
SMALL = {"max_model_len": 480, "num_kv_blocks": 30, "max_num_seqs": 8, "max_num_batched_tokens": 64}
LONG = 400
CLEAR = 1e-4
"""By how much the likeliest token's log probability is above the next one's: far more than float32 rounds."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoints by name. Their answers have no end of their own."""
    folder, found = tmp_path_factory.mktemp("models"), {}
    for name, changes in {**CONFIGURATIONS, "uneven": {**UNEVEN, "mlp_bias": True}}.items():
        found[name] = save(reference_model(**changes, bos_token_id=None, eos_token_id=None), folder / name)
        save_words(found[name], SIZES["vocab_size"])
    return found


@cache
def answers_of_one(model: Path) -> list[str]:
    """The tokens of one rank, as text, in this process and with memory for all: no request is preempted."""
    llm = LLM(str(model), device="cpu", dtype="float32", max_model_len=480, num_kv_blocks=300)
    answers = llm.generate(PROMPTS, SamplingParams(max_tokens=TOKENS, temperature=0.0, logprobs=2))
    llm.close()
    choices = [choice.top for answer in answers for choice in answer.logprobs]
    assert len(choices) == TOKENS * len(PROMPTS)
    assert min(first - second for (_, first), (_, second) in choices) > CLEAR
    return [answer.text for answer in answers]


class Server:
    """`octavo-engine serve` with ranks, seen from outside."""

    def __init__(self, model: Path, size: int) -> None:
        self.port = free_port()
        flags = {
            "device": "cpu",
            "dtype": "float32",
            "tensor-parallel-size": size,
            "host": "127.0.0.1",
            "port": self.port,
            "served-model-name": "tiny",
            **{name.replace("_", "-"): value for name, value in SMALL.items()},
        }
        self.process = psutil.Popen([ENGINE, "serve", str(model), *(f"--{name}={v}" for name, v in flags.items())])

    def open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        return urllib.request.urlopen(request, timeout=240)  # noqa: S310  (it is http)

    def wait_ready(self) -> None:
        for _ in range(2400):
            assert self.process.poll() is None
            try:
                self.open("/health/ready").close()
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise AssertionError("not ready within four minutes")

    def complete(self, prompt: list[int]) -> Any:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        with self.open("/v1/completions", body) as response:
            return json.load(response)

    def metric(self, name: str) -> float:
        with self.open("/metrics") as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def processes(self, module: str) -> list[psutil.Process]:
        return [child for child in self.process.children(recursive=True) if module in command(child)]

    def named_memory(self) -> set[str]:
        """Return the files that the processes share by a name, which would stay behind when they are killed."""
        everyone = [self.process, *self.process.children(recursive=True)]
        paths = {mapped.path for process in everyone for mapped in process.memory_maps()}
        return {path for path in paths if path.startswith("/dev/shm/") and Path(path).exists()}


@contextmanager
def serving(model: Path, size: int) -> Iterator[Server]:
    server = Server(model, size)
    everyone: list[psutil.Process] = []
    try:
        server.wait_ready()
        everyone = server.process.children(recursive=True)
        assert len(server.processes(RANK_PROCESS)) == size - 1
        yield server
    finally:
        if server.process.poll() is None:
            server.process.terminate()
            server.process.wait(120)
    psutil.wait_procs(everyone, 120)
    assert not any(alive(process) for process in everyone)


def assert_answers(server: Server, expected: list[str]) -> None:
    """Those of one rank: alone, in a batch that is preempted, and once more from the prefix cache."""
    assert server.complete(PROMPTS[3])["choices"][0]["text"] == expected[3]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(server.complete, PROMPTS))
    assert [answer["choices"][0]["text"] for answer in answers] == expected
    assert server.metric("octavo_preemptions_total") > 0
    server.complete(PROMPTS[9])  # others may have evicted its blocks since it was answered
    again = server.complete(PROMPTS[9])
    assert again["choices"][0]["text"] == expected[9]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def end_of_a_stream(server: Server, victim: psutil.Process, how: signal.Signals) -> tuple[str, int]:
    """Signal `victim` in the middle of an answer; return the rest of the stream and the server's exit code."""
    body = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": LONG, "temperature": 0, "stream": True}
    with server.open("/v1/completions", body) as stream:
        for _ in range(6):
            assert stream.readline()
        victim.send_signal(how)
        rest = stream.read().decode()
        return rest, server.process.wait(120)


@pytest.mark.parametrize(
    ("name", "size", "whom", "how", "words"),
    [
        ("gqa4", 2, RANK_PROCESS, signal.SIGKILL, "was killed by SIGKILL"),
        ("uneven", 4, RANK_PROCESS, signal.SIGSTOP, "is stalled"),
        ("gelu", 2, ENGINE_PROCESS, signal.SIGKILL, "SIGKILL"),
    ],
)
def test_ranks_answer_as_one_does_until_a_process_ends(name, size, whom, how, words, models):
    """Then all end; `serving` checks that no rank outlives the others."""
    expected = answers_of_one(models[name])
    with serving(models[name], size) as server:
        assert_answers(server, expected)
        assert server.named_memory() == set()
        rest, code = end_of_a_stream(server, server.processes(whom)[-1], how)
        assert (code, words in rest, "[DONE]" in rest) == (5, True, False), rest[-500:]


def test_a_rank_that_ends_while_idle_is_noticed(models):
    with serving(models["norm_eps"], 2) as server:
        server.processes(RANK_PROCESS)[0].kill()
        assert server.process.wait(120) == 5


def test_more_ranks_than_heads_are_a_matter_of_configuration(tiny_model):
    assert_fails([str(tiny_model), "--tensor-parallel-size=5"], 2, "is more than the model's 4 attention heads")


def pretended_answers(model: Path, size: int, texts: list[list[int]] | None) -> list[list[int]]:
    """Return answers to prompts of which every second is guided, with drafts from `texts` if there are any."""
    llm = LLM(str(model), device="cpu", dtype="float32", tensor_parallel_size=size, **SMALL)
    llm._loop.guided.provider = PretendedMasks()
    proposer = llm._loop._scheduler.proposer = PretendedProposer(texts) if texts else None
    ways = [SamplingParams(max_tokens=12, temperature=temperature, seed=3) for temperature in (0.0, 1.0)]
    prompts = [[token % 64 for token in prompt] for prompt in PROMPTS[:6]]
    answers = llm.generate(prompts, [ways[index // 2 % 2] for index in range(6)])
    llm.close()
    assert proposer is None or proposer.proposed > 30
    return [prompt + answer.token_ids for prompt, answer in zip(prompts, answers, strict=True)]


def test_two_ranks_verify_drafts_and_keep_to_masks_as_one_does(tiny_model):
    expected = pretended_answers(tiny_model, 1, None)
    assert pretended_answers(tiny_model, 2, expected) == expected
