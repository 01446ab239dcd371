"""Whole models with LoRA adapters: several ranks and the base in one batch, against merged weights and by CUDA graphs.

Weights are merged from the definition, W + B A, in float32. All checks are large; test_gpu_check.py runs them without a
GPU, but for the graphs.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from bench.gpu import shapes
from bench.gpu.adapter_files import write_adapter
from bench.gpu.shapes import Shape
from tests.kernels.check import Build, Check, NotCheckedError
from tests.kernels.whole_model_checks import (
    LENGTHS,
    Tiny,
    count_equal,
    generate,
    graph_messages,
    their_largest,
    write_model,
)

_STD = 0.1
_SLACK = 1e-3
"""By which log probabilities in float32 may differ: products are added up in another order."""
_RANKS = (3, 16, 40)
_LARGE_RANKS = (8, 300)
"""Of which the larger one's products are computed in blocks of ranks."""

TINY_QWEN3_MOE = Tiny(
    "tiny-qwen3-moe",
    "Qwen3Moe",
    {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "mlp_only_layers": []},
    experts=4,
)


@dataclass(frozen=True)
class Adapted:
    """A model's folder, and those of its adapters by their names."""

    base: Path
    adapters: dict[str, Path]

    def names(self, count: int) -> list[str | None]:
        """Return the adapters of `count` prompts, None for the base, which take turns."""
        every = (None, *self.adapters)
        return [every[index % len(every)] for index in range(count)]

    @property
    def settings(self) -> dict[str, Any]:
        """Return the engine's settings that serve all adapters at once."""
        modules = [f"{name}={folder}" for name, folder in self.adapters.items()]
        rank = max(int(name.removeprefix("rank-")) for name in self.adapters)
        return {"enable_lora": True, "lora_modules": modules, "max_loras": len(modules), "max_lora_rank": rank}

    def merge(self, name: str) -> Path:
        """Return the folder of a copy of the model with an adapter merged into its weights, in float32."""
        folder = self.base.parent / f"merged-{name}"
        shutil.copytree(self.base, folder)
        adapter = load_file(self.adapters[name] / "adapter_model.safetensors")
        for file in folder.glob("*.safetensors"):
            tensors = {weight: tensor.float() for weight, tensor in load_file(file).items()}
            for weight in tensors:
                module = f"base_model.model.{weight.removesuffix('.weight')}"
                if (a := adapter.get(f"{module}.lora_A.weight")) is not None:
                    tensors[weight] += adapter[f"{module}.lora_B.weight"].float() @ a.float()
            save_file(tensors, file, metadata={"format": "pt"})
        return folder


@contextmanager
def _adapted(shape: Shape | Tiny, ranks: Sequence[int], device: torch.device) -> Iterator[Adapted]:
    """Write a model and adapters of all its linear layers, routers and experts among them."""
    with tempfile.TemporaryDirectory() as temporary:
        base = write_model(shape, Path(temporary) / "base", device)
        weights = {name: each.shape for file in base.glob("*.safetensors") for name, each in load_file(file).items()}
        modules = {
            name.removesuffix(".weight"): (size[0], size[1])
            for name, size in weights.items()
            if ".layers." in name and len(size) == 2
        }
        adapters = {}
        for rank in ranks:
            folder = Path(temporary) / f"rank-{rank}"
            std = _STD * (ranks[0] / rank) ** 0.25  # so that each changes the answers about as much
            adapters[folder.name] = write_adapter(modules, rank, folder, device, seed=rank, std=std)
        yield Adapted(base, adapters)


def merged_equal(
    shape: Shape | Tiny, ranks: Sequence[int], lengths: Sequence[int], count: int, device: torch.device
) -> str:
    """The same answers from adapters beside each other and the base as from merged weights, token for token."""
    with _adapted(shape, ranks, device) as adapted:
        names = adapted.names(len(lengths))
        settings = {"dtype": "float32", "enforce_eager": True}
        answers = generate(adapted.base, shape, device, lengths, count, adapters=names, **settings, **adapted.settings)
        base = generate(adapted.base, shape, device, lengths, count, **settings)
        equal = 0
        for name in (None, *adapted.adapters):
            merged = base if name is None else generate(adapted.merge(name), shape, device, lengths, count, **settings)
            own = [index for index, other in enumerate(names) if other == name]
            equal += count_equal([answers[index] for index in own], [merged[index] for index in own], _SLACK)
            if name is not None:
                first = [(base[index].logprobs[0].top[0][1], merged[index].logprobs[0].top[0][1]) for index in own]
                changed = max(abs(a - b) for a, b in first)
                assert changed > 20 * _SLACK, f"{name} changes log probabilities by {changed} only: nothing is compared"
    return f"{equal} of {count * len(answers)} tokens equal, but for ties of {_SLACK}"


def _graphs_equal_eager(shape: Shape | Tiny, ranks: Sequence[int], dtype: str, device: torch.device) -> str:
    """The same answers with CUDA graphs as without: steps of the base alone have graphs of their own.

    The bound in bfloat16 is that of whole_model_checks, where transformers' error is the base's.
    """
    if device.type != "cuda":
        raise NotCheckedError("CUDA graphs need a GPU")
    with _adapted(shape, ranks, device) as adapted:
        given = partial(generate, adapted.base, shape, device, LENGTHS, 48, dtype=dtype)
        given = partial(given, adapters=adapted.names(len(LENGTHS)), **adapted.settings)
        with graph_messages() as captured:
            graphs = given(cudagraph_mode="full")
        with graph_messages() as none:
            eager = given(enforce_eager=True)
        slack = _SLACK if dtype == "float32" else 2 * (2 * their_largest(adapted.base, device, eager) + 1e-2)
    assert captured and all(" captured in " in message for message in captured), f"CUDA graphs are missing: {captured}"
    assert not none, f"with --enforce-eager: {none}"
    equal = count_equal(graphs, eager, slack)
    return f"{equal} of {sum(len(each.token_ids) for each in eager)} tokens equal, but for ties of {slack:.3g}"


_CASES: tuple[tuple[Shape | Tiny, Sequence[int]], ...] = (
    (shapes.TINY_LLAMA, _RANKS),
    (shapes.TINY_LLAMA, _LARGE_RANKS),
    (TINY_QWEN3_MOE, _RANKS),
)
_EXACT = [(f"{shape.name}_ranks_{'_'.join(map(str, ranks))}", shape, ranks) for shape, ranks in _CASES]
CHECKS = [
    *(
        Check(f"merged_{name}", partial(merged_equal, shape, ranks, LENGTHS, 48), large=True)
        for name, shape, ranks in _EXACT
    ),
    *(
        Check(f"graphs_{name}", partial(_graphs_equal_eager, shape, ranks, "float32"), large=True, alone=True)
        for name, shape, ranks in _EXACT
    ),
    Check(
        "graphs_bfloat16",
        partial(_graphs_equal_eager, shapes.TINY_LLAMA, _RANKS, "bfloat16"),
        large=True,
        alone=True,
    ),
]
BUILDS: list[Build] = []
