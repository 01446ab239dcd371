"""The targets of issue 6, and the share of each that the measurements reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.gpu.result import Figure, Result

STATIC_BATCH = "batches of 32"
_NOT_RUN = "not measured: the part that measures it has not run on a GPU"


@dataclass(frozen=True)
class Target:
    """One line of the table: `measured` is None if it was not measured, and `note` has the reason."""

    name: str
    target: float
    unit: str
    measured: float | None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """True if the target was reached; None if it was not measured."""
        if self.measured is None:
            return None
        return self.measured < self.target if self.unit == "s" else self.measured >= self.target


@dataclass(frozen=True)
class Aim:
    """The computation of a target's line: its part of the issue, and the figures to look up."""

    key: str
    name: str
    target: float
    unit: str
    find: Callable[[Result], tuple[float | None, str]]
    part: str
    """The part of the bench that measures it."""


def _fraction(key: str) -> Callable[[Result], tuple[float | None, str]]:
    def find(result: Result) -> tuple[float | None, str]:
        figure = result.find(key)
        if figure is None:
            return None, _NOT_RUN
        return figure.fraction, figure.note

    return find


def _paged_decode(result: Result) -> tuple[float | None, str]:
    """Return the worst of the cases that the target covers."""
    figures = [figure for figure in result.matching("llama-8b/paged decode/") if figure.fraction is not None]
    cases = [figure for figure in figures if _numbers(figure)[0] >= 16 and _numbers(figure)[1] >= 4096]
    if not cases:
        return None, _NOT_RUN
    worst = min(cases, key=lambda figure: figure.fraction or 0.0)
    return worst.fraction, f"the worst of {len(cases)} cases, {worst.case}"


def _numbers(figure: Figure) -> tuple[int, int]:
    """Return batch and context of a figure whose case is `batch B, context C`."""
    batch, context = figure.case.replace("batch ", "").replace("context ", "").split(", ")[:2]
    return int(batch), int(context)


def _busy(result: Result) -> tuple[float | None, str]:
    figures = result.matching("llama-8b/GPU busy/")
    if not figures:
        return None, _NOT_RUN
    worst = min(figures, key=lambda figure: figure.value or 0.0)
    return worst.value, f"the worst of {len(figures)} cases, {worst.case}; {worst.note}"


def _over_generate(result: Result) -> tuple[float | None, str]:
    ours = result.find("llama-8b/offline/1000 + 1000")
    theirs = result.matching("llama-8b/transformers generate/")
    if ours is None or ours.value is None:
        return None, _NOT_RUN
    if not theirs:
        return None, "transformers' generate has not run"
    ratios = {figure.case: ours.value / (figure.value or 1.0) for figure in theirs}
    notes = {figure.case: figure.note and f" ({figure.note})" for figure in theirs}
    said = ", ".join(f"{ratio:.1f}× in {case}{notes[case]}" for case, ratio in ratios.items())
    return ratios.get(STATIC_BATCH), f"against generate in {STATIC_BATCH}, the most that `make bench` has; {said}"


def _over_vllm(result: Result) -> tuple[float | None, str]:
    ours, theirs = (result.find(f"llama-8b/{what}/1000 + 1000") for what in ("offline", "vLLM offline"))
    if ours is None or ours.value is None or theirs is None:
        return None, _NOT_RUN
    return (None if theirs.value is None else ours.value / theirs.value), theirs.note


def _start(result: Result) -> tuple[float | None, str]:
    figure = result.find("llama-8b/start to ready/from disk")
    return (None, _NOT_RUN) if figure is None else (figure.value, figure.note)


AIMS = (
    Aim(
        "decode-1",
        "decode step, batch 1, 8B bf16, of measured read bandwidth",
        0.85,
        "fraction",
        _fraction("llama-8b/decode step/batch 1, context 1024"),
        "llama-8b",
    ),
    Aim(
        "decode-256",
        "decode step, batch 256, context 1k, 8B bf16, of measured read bandwidth",
        0.80,
        "fraction",
        _fraction("llama-8b/decode step/batch 256, context 1024"),
        "llama-8b",
    ),
    Aim(
        "prefill-8k",
        "prefill of 8k tokens, 8B bf16, of the measured bf16 matmul rate",
        0.65,
        "fraction",
        _fraction("llama-8b/prefill/8192 tokens"),
        "llama-8b",
    ),
    Aim(
        "paged-decode",
        "paged decode kernel, batch >= 16, context >= 4k, of measured read bandwidth",
        0.80,
        "fraction",
        _paged_decode,
        "attention",
    ),
    Aim("busy", "GPU busy in steady decode, 8B bf16", 0.97, "fraction", _busy, "llama-8b"),
    Aim("generate", "offline 1000/1000, 8B bf16, over transformers' generate", 10.0, "times", _over_generate, "peers"),
    Aim("vllm", "offline 1000/1000, 8B bf16, over vLLM", 1.0, "times", _over_vllm, "vllm"),
    Aim("start", "start to ready, 8B bf16, weights on local disk", 30.0, "s", _start, "start"),
)


def targets(result: Result) -> list[Target]:
    """Return one line for each target."""
    lines = []
    for aim in AIMS:
        measured, note = aim.find(result)
        lines.append(Target(aim.name, aim.target, aim.unit, measured, note))
    return lines
