"""Measures one model in Octavo's engine: decode steps, prefill, the device's idle time, offline throughput."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.gpu import floors
from bench.gpu.busy import busy_share, kernel_figures
from bench.gpu.context import Context
from bench.gpu.result import Figure, missing, rate, timed
from bench.gpu.shapes import Shape
from bench.gpu.steps import Driver, TooLargeError, engine, free_memory
from octavo_engine import LLM, SamplingParams
from octavo_engine.errors import ConfigurationError, DoesNotFitError, ModelLoadError

_SHORTER_FROM, _SHORTER_UNTIL = 32, 64
"""Batches that are measured with less context where the cache is too small: 64 × 8k does not fit an H100 beside 8B."""
_SAMPLED = {"temperature": 0.8, "top_p": 0.95}


def serving(context: Context, shape: Shape, weights: str = "bf16") -> Iterator[Figure]:
    """Measure steps of `shape`; `weights` of `fp8` are quantized while they are loaded."""
    name, extra = _weights(shape, weights)
    try:
        yield from _all_steps(context, shape, weights, name, extra)
        if context.scale.thorough and (shape, weights) == (context.scale.llama, "bf16"):
            yield from _steps_as_graphs(context, shape, weights, name)
    except (ModelLoadError, ConfigurationError, DoesNotFitError) as error:
        yield missing(name, "all", f"not supported yet: {error}")


# Each engine has a function of its own, since nothing may refer to it when the next one looks for free memory.
def _all_steps(context: Context, shape: Shape, weights: str, name: str, extra: dict[str, Any]) -> Iterator[Figure]:
    with engine(context.checkpoint(shape), **context.settings, **extra) as loop:
        driver = Driver(loop, steps=context.scale.steps, rounds=context.scale.rounds)
        yield from _decode(context, shape, weights, name, driver)
        yield from _prefill(context, shape, weights, name, driver)
        if not context.scale.thorough:
            return
        yield from _chunks(context, shape, weights, name, driver)
        yield from _short_prompts(context, shape, weights, name, driver)


def _steps_as_graphs(context: Context, shape: Shape, weights: str, name: str) -> Iterator[Figure]:
    with engine(context.checkpoint(shape), **context.settings, cudagraph_mode="full") as loop:
        driver = Driver(loop, steps=context.scale.steps, rounds=context.scale.rounds)
        yield from _short_prompts(context, shape, weights, name, driver, ", as CUDA graphs")


def _weights(shape: Shape, weights: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a model with such weights, and the settings that quantize them."""
    return (shape.name, {}) if weights == "bf16" else (f"{shape.name}-{weights}", {"quantization": weights})


def _decode(context: Context, shape: Shape, weights: str, name: str, driver: Driver) -> Iterator[Figure]:
    scale = context.scale
    for length in scale.contexts:
        for batch in scale.batches:
            yield from _steady(context, shape, weights, name, driver, (length,) * batch)
    if not scale.thorough:
        return
    yield from _steady(context, shape, weights, name, driver, scale.ragged)
    batch, length = max(scale.batches), scale.contexts[0]
    try:
        steady = driver.decode(*(length,) * batch, **_SAMPLED)
    except TooLargeError:
        return
    floor = floors.decode(shape, batch, round(steady.context), context.rates, weights)
    said = ", ".join(f"{key} {value}" for key, value in _SAMPLED.items())
    yield timed(name, "sampled decode step", f"batch {batch}, context {length}", steady.wall, floor.seconds, said)


def _steady(
    context: Context, shape: Shape, weights: str, name: str, driver: Driver, lengths: tuple[int, ...]
) -> Iterator[Figure]:
    """Measure decode steps at these contexts, or at three quarters of them if the GPU's memory is too small."""
    case = f"batch {len(lengths)}, context {'–'.join(map(str, sorted(set(lengths))))}"
    try:
        steady = driver.decode(*lengths, profile=True)
    except TooLargeError as error:
        yield missing(name, "decode step", str(error), case)
        shorter = tuple(3 * length // 4 for length in lengths)
        if len(lengths) >= _SHORTER_FROM and lengths != shorter and len(lengths) <= _SHORTER_UNTIL:
            yield from _steady(context, shape, weights, name, driver, shorter)
        return
    floor = floors.decode(shape, len(lengths), round(steady.context), context.rates, weights)
    device = sorted(steady.device)[len(steady.device) // 2]
    note = f"{floor.bound}-bound; {1e3 * device:.2f} ms of it on the device; {steady.context:.0f} tokens"
    yield timed(name, "decode step", case, steady.wall, floor.seconds, note)
    share, how = busy_share(steady, driver.steps)
    yield Figure(model=name, what="GPU busy", case=case, unit="of the time", value=share, rounds=1, note=how)
    yield from kernel_figures(name, case, steady, driver.steps)


def _prefill(context: Context, shape: Shape, weights: str, name: str, driver: Driver) -> Iterator[Figure]:
    for tokens in context.scale.prompts:
        case = f"{tokens} tokens"
        try:
            seconds = driver.prefill(tokens)
        except TooLargeError as error:
            yield missing(name, "prefill", str(error), case)
            continue
        operations = floors.prefill(shape, tokens, context.rates, weights).operations
        reached = f"{operations / sorted(seconds)[len(seconds) // 2] / 1e12:.0f} TFLOP/s"
        kind = "fp8" if weights == "fp8" else "bf16"
        yield timed(name, "prefill", case, seconds, operations / context.rates.matmul[kind], reached)


def _chunks(context: Context, shape: Shape, weights: str, name: str, driver: Driver) -> Iterator[Figure]:
    """Measure a few tokens after a long cached prefix, and a prompt that arrives while others decode."""
    past, few = context.scale.after
    batch, length, tokens = context.scale.beside
    after, beside = f"{few} tokens after {past}", f"{tokens} tokens beside {batch} decodes at {length}"
    try:
        floor = floors.prefill(shape, few, context.rates, weights, past)
        yield timed(name, "chunk", after, driver.after(past, few), floor.seconds, f"{floor.bound}-bound")
        floor = floors.mixed(shape, batch, length, tokens, context.rates, weights)
        yield timed(name, "mixed step", beside, driver.beside(batch, length, tokens), floor.seconds, floor.bound)
    except TooLargeError as error:
        yield missing(name, "mixed step", str(error), beside)


def _short_prompts(
    context: Context, shape: Shape, weights: str, name: str, driver: Driver, how: str = ""
) -> Iterator[Figure]:
    """Measure prompts so short that the host would need longer to launch kernels than the device to compute them."""
    batch, length, _ = context.scale.beside
    for tokens in context.scale.short:
        floor = floors.prefill(shape, tokens, context.rates, weights)
        yield timed(name, "short prompt", f"{tokens} tokens{how}", driver.prefill(tokens), floor.seconds, floor.bound)
        floor = floors.mixed(shape, batch, length, tokens, context.rates, weights)
        case = f"{tokens} tokens beside {batch} decodes at {length}{how}"
        yield timed(name, "short prompt", case, driver.beside(batch, length, tokens), floor.seconds, floor.bound)


def offline(context: Context, shape: Shape, weights: str = "bf16") -> Iterator[Figure]:
    """Measure `LLM.generate` with all requests at once, greedy; output tokens per second, detokenization included."""
    free_memory()
    name, extra = _weights(shape, weights)
    try:
        llm = LLM(context.checkpoint(shape), **context.settings, **extra)
    except (ModelLoadError, ConfigurationError, DoesNotFitError) as error:
        yield missing(name, "offline", f"not supported yet: {error}")
        return
    driver = Driver(llm._loop)
    try:
        _run(llm, [driver.prompt(8) for _ in range(8)], 8)  # warm-up
        for requests, prompt, answer in context.scale.offline:
            rounds = [
                _run(llm, [driver.prompt(prompt) for _ in range(requests)], answer)
                for _ in range(min(2, context.scale.rounds))
            ]
            batch = min(requests, llm.info.max_num_seqs)
            floor = floors.offline(shape, requests, prompt, answer, batch, context.rates, weights)
            case = f"{prompt} + {answer}"
            yield rate(name, "offline", case, requests * answer, rounds, floor.seconds)
        yield _shared_beginnings(context, shape, weights, llm, driver)
    finally:
        llm.close()


def _shared_beginnings(context: Context, shape: Shape, weights: str, llm: LLM, driver: Driver) -> Figure:
    """Measure requests that share a few prefixes, each of which has to be computed once."""
    requests, groups, beginning, rest, answer = context.scale.prefix
    beginnings = [driver.prompt(beginning) for _ in range(groups)]
    prompts = [beginnings[index % groups] + driver.prompt(rest) for index in range(requests)]
    before = llm.report().prefix_hit_tokens
    seconds = _run(llm, prompts, answer)
    hits = (llm.report().prefix_hit_tokens - before) / (requests * (beginning + rest))
    case = f"{groups} beginnings of {beginning} + {rest} + {answer}"
    batch = min(requests, llm.info.max_num_seqs)
    floor = floors.shared_beginnings(shape, *context.scale.prefix, batch, context.rates, weights)
    name, _ = _weights(shape, weights)
    figure = rate(name, "offline, prefix-heavy", case, requests * answer, [seconds], floor.seconds)
    return replace(figure, note=f"{hits:.0%} of the prompts' tokens from the prefix cache")


def _run(llm: LLM, prompts: list[list[int]], answer: int) -> float:
    begin = time.perf_counter()
    answers = llm.generate(prompts, SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True))
    seconds = time.perf_counter() - begin
    if any(len(each.token_ids) != answer for each in answers):
        errors = {each.error for each in answers}
        raise RuntimeError(f"not every answer has {answer} tokens: {errors}")
    return seconds
