"""Compares Octavo with transformers, on the same weights in float32."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from octavo_engine import LLM, SamplingParams
from tests.quantization_tools.source import VOCABULARY

TOKENS = torch.randint(0, VOCABULARY, (48,), generator=torch.Generator().manual_seed(7)).tolist()
BOUND = 1e-3
"""The largest difference of a log probability."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result with one checkpoint."""

    tool: str
    scheme: str
    difference: float | None
    """The largest difference of a log probability; None: there is none to compare."""
    error: str | None = None
    good: bool = True

    @property
    def outcome(self) -> str:
        """The result in a table."""
        return self.error or f"{self.difference:.1e}"


def compare(folder: Path) -> Iterator[Comparison]:
    """Compare and print the checkpoints that `folder`/made.jsonl lists."""
    made = folder / "made.jsonl"
    if not made.exists():
        yield Comparison(folder.name, "all", None, f"the tool failed: {folder}/log", good=False)
        return
    for line in made.read_text().splitlines():  # one for each scheme that the tool has tried
        result = _compare(folder, **json.loads(line))
        print(f"{result.tool}, {result.scheme}: {result.outcome}", flush=True)
        yield result


def _compare(folder: Path, tool: str, scheme: str, directory: str, error: str | None) -> Comparison:
    if error is not None:
        return Comparison(tool, scheme, None, f"not made: {error}")
    checkpoint = folder / directory
    shutil.copy(folder / "source" / "tokenizer.json", checkpoint)
    try:
        found = _octavo(checkpoint)
    except Exception as failure:  # noqa: BLE001 -- a line says so, and the others follow
        return Comparison(tool, scheme, None, f"{type(failure).__name__}: {failure}", good=False)
    expected = _transformers(folder / "source", checkpoint.with_suffix(".dequantized"))
    difference = float((found - expected).abs().max())
    return Comparison(tool, scheme, difference, good=difference <= BOUND)


def _octavo(directory: Path) -> torch.Tensor:
    """Return log probabilities [token, vocabulary] after each token of the prompt but its last."""
    llm = LLM(str(directory), device="cpu", dtype="float32", max_model_len=128)
    [answer] = llm.generate([TOKENS], SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=VOCABULARY))
    llm.close()
    if answer.error is not None:
        raise RuntimeError(answer.error)
    found = torch.full((len(TOKENS) - 1, VOCABULARY), torch.nan)
    for row, place in zip(found, answer.prompt_logprobs, strict=True):
        for token, logprob in place.top:
            row[token] = logprob
    return found


def _transformers(source: Path, dequantized: Path) -> torch.Tensor:
    """Return what transformers computes in float32 with the tool's dequantized weights."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    weights, state = load_file(dequantized), model.state_dict()
    missing = [name for name in state if name.endswith(".weight") and name not in weights]
    assert not missing, f"the tool has no dequantized {missing[0]}"
    model.load_state_dict({**state, **{name: weights[name] for name in state if name in weights}})
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0, :-1].log_softmax(-1)
