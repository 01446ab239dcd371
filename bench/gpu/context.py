"""The input of every part of the bench: the device, its measured rates, and the amount of work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.gpu import shapes
from bench.gpu.floors import Rates
from bench.gpu.result import Figure
from bench.gpu.shapes import Shape, write_checkpoint
from octavo_engine.model.configuration.read_spec import find_family


@dataclass(frozen=True)
class Scale:
    """The amount of work: that of the targets on a GPU, and in a dry run on a CPU the least that runs all the code."""

    llama: Shape
    qwen: Shape
    gpt_oss: Shape
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    """Lengths of prefill."""
    ragged: tuple[int, ...]
    """Contexts of one more batch: one that is far longer than the others."""
    after: tuple[int, int]
    """Tokens of a cached prefix, and those that come after it."""
    beside: tuple[int, int, int]
    """Decodes, their context, and tokens of a prompt that comes beside them."""
    short: tuple[int, ...]
    """Tokens of prompts that a CUDA graph computes, alone and beside such decodes."""
    rounds: int
    steps: int
    """Decode steps per round."""
    offline: tuple[tuple[int, int, int], ...]
    """Requests, tokens per prompt, tokens per answer."""
    prefix: tuple[int, int, int, int, int]
    """Requests, different prefixes, tokens of a prefix, of the rest of the prompt, of an answer."""
    generate_batches: tuple[int, ...]
    """Batch sizes of transformers' generate."""
    continuous: int
    """Requests for transformers' continuous batching."""
    continuous_settings: dict[str, Any]
    """Settings of continuous batching, which by default takes nine tenths of the memory, on a CPU too."""
    warm_starts: int
    paged_batches: tuple[int, ...]
    paged_contexts: tuple[int, ...]
    paged_ragged: tuple[int, ...]
    """Contexts of one more batch: one that is far longer than the others."""
    quantized_tokens: tuple[int, ...]
    """The numbers of tokens that are multiplied with weights of 4 and 8 bits."""
    adapter_batches: tuple[int, ...]
    """Batches of decode steps with adapters, at the first of `contexts`."""
    settings: dict[str, Any]
    """Settings of the engine."""
    thorough: bool = True
    """Whether models are measured with ragged contexts, sampling, chunks, short prompts and offline as well."""

    def quick(self) -> Scale:
        """Return the most telling cases: some decodes at the shortest context and two prefills of each model."""
        return replace(
            self,
            batches=self.batches[:3],
            contexts=self.contexts[:1],
            prompts=self.prompts[:2],
            rounds=min(3, self.rounds),
            thorough=False,
        )


FULL = Scale(
    llama=shapes.LLAMA_8B,
    qwen=shapes.QWEN3_06B,
    gpt_oss=shapes.GPT_OSS_20B,
    batches=(1, 256, 32, 8, 64),
    contexts=(1024, 8192),
    prompts=(8192, 2048, 512, 16384),
    ragged=(16384, *(1024,) * 31),
    after=(8192, 64),
    beside=(32, 1024, 2048),
    short=(16, 64, 256, 448),
    rounds=5,
    steps=32,
    offline=((512, 1000, 1000), (1024, 128, 512)),
    prefix=(512, 8, 2048, 128, 128),
    generate_batches=(32, 128),
    continuous=64,
    continuous_settings={},
    warm_starts=2,
    paged_batches=(1, 16, 64, 256),
    paged_contexts=(1024, 4096, 8192, 32768),
    paged_ragged=(32768, *(1024,) * 31),
    quantized_tokens=(1, 16, 64, 256, 2048),
    adapter_batches=(32, 256, 64),
    settings={"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 18000},
)
TINY = Scale(
    llama=shapes.TINY_LLAMA,
    qwen=shapes.TINY_QWEN3,
    gpt_oss=shapes.TINY_GPT_OSS,
    batches=(1, 4),
    contexts=(32,),
    prompts=(16,),
    ragged=(64, 16, 16),
    after=(32, 4),
    beside=(2, 16, 8),
    short=(8,),
    rounds=2,
    steps=4,
    offline=((4, 8, 8),),
    prefix=(4, 2, 32, 4, 4),
    generate_batches=(4,),
    continuous=4,
    continuous_settings={"block_size": 16, "num_blocks": 16, "max_batch_tokens": 64},
    warm_starts=0,
    paged_batches=(2,),
    paged_contexts=(64,),
    paged_ragged=(128, 16),
    quantized_tokens=(2,),
    adapter_batches=(4,),
    settings={"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256, "num_kv_blocks": 256},
)


@dataclass(frozen=True)
class Context:
    """The input of one run."""

    device: torch.device
    rates: Rates
    scale: Scale
    scratch: Path
    """The folder for checkpoints."""
    vllm_python: str = sys.executable
    """The Python in which vLLM is looked for."""

    def checkpoint(self, shape: Shape) -> str:
        """Return a folder with random weights of `shape`, which are written unless they exist already.

        ModelLoadError, before gigabytes are written, if the engine has no family for the shape.
        """
        folder = self.scratch / shape.name
        find_family(shape.architecture, folder)
        return str(write_checkpoint(shape, folder, self.device))

    @property
    def settings(self) -> dict[str, Any]:
        """The engine's settings in this run."""
        return {"device": self.device.type, **self.scale.settings}


Measure = Callable[[Context], Iterator[Figure]]
"""A part of the bench: yields each figure as soon as it is measured."""
