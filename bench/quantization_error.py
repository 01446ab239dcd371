"""Measures how well SmolLM2 predicts a fixed text with quantized weights: `python -m bench.quantization_error`.

The text is the first 512 tokens of this repository's LICENSE; the figure is a token's mean negative log-likelihood.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from octavo_engine.attention.backend import StepInputs
from octavo_engine.attention.context import AttentionContext
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.model.configuration import read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.gguf_blocks import quantized
from octavo_engine.model.loader import load_model
from octavo_engine.model.quantization.int4 import quantize
from octavo_engine.model.source import DEMO_MODEL, ModelFiles, resolve_model
from octavo_engine.text.tokenizer import load_tokenizer

TEXT = Path(__file__).parent.parent / "LICENSE"
TOKENS, BLOCK = 512, 16
CPU = torch.device("cpu")
CASES = (
    (torch.float32, None),
    (torch.bfloat16, None),
    *((torch.float32, name) for name in ("fp8", "int8", "int4")),
    *((torch.bfloat16, name) for name in ("int8", "int4", "gguf")),
)
"""The dtypes and quantizations that are measured. Those in bfloat16 use this CPU's kernels, as a server does."""
GROUPS = (128,)
"""Numbers of columns that share a scale and a minimum: 128, as in most published (calibrated) checkpoints."""
CALIBRATION = Path(__file__).parent.parent / "docs" / "architecture.md"


@torch.inference_mode()
def mean_nll(decoder: Decoder, tokens: Tensor) -> float:
    """Return the mean negative log-likelihood of all tokens [n] but the first, computed in one step."""
    count, backend = len(tokens), TorchAttention()
    (group,) = decoder.kv_groups
    inputs = StepInputs(
        token_ids=tokens.int(),
        positions=torch.arange(count),
        cu_query_lens=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([count], dtype=torch.int32),
        block_tables=(torch.arange(-(-count // BLOCK), dtype=torch.int32).view(1, -1),),
        slot_mapping=(torch.arange(count),),
        token_indices=torch.arange(count),
        query_lens_host=(count,),
        context_lens_host=(count,),
    )
    context = AttentionContext(
        backend=backend,
        caches=backend.allocate(group, -(-count // BLOCK), BLOCK, decoder.dtype, CPU),
        metadata=(backend.prepare(inputs, 0, BLOCK, group.window),),
        group_of_layer=(0,) * len(group.layers),
    )
    logits = decoder.logits(decoder(inputs, context)).float()
    return float(torch.nn.functional.cross_entropy(logits[:-1], tokens[1:].long()))


def load(files: ModelFiles, dtype: torch.dtype, quantization: str | None) -> Decoder:
    """Return the model in `dtype` with its weights quantized while they are loaded."""
    return load_model(files, quantized(files, read_spec(files), quantization), CPU, dtype, lambda *_: None)


def hessians(decoder: Decoder, tokens: Tensor) -> dict[int, Tensor]:
    """Return X^T X of the inputs of each linear layer over a text, by the address of its weight."""
    found: dict[int, Tensor] = {}
    compute, product = decoder.compute, decoder.compute.product

    def recording(x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        found[weight.data_ptr()] = found.get(weight.data_ptr(), 0) + x.T @ x
        return product(x, weight, bias, addend)

    object.__setattr__(compute, "product", recording)
    for part in tokens.split(TOKENS):
        mean_nll(decoder, part)
    object.__setattr__(compute, "product", product)
    return found


def calibrated(weight: Tensor, hessian: Tensor, size: int) -> Tensor:
    """Return a weight [rows, columns] rounded to 4 bits by groups of columns; later columns compensate for errors.

    GPTQ (arXiv 2210.17323); a group's scale and minimum are those of `--quantization int4`.
    """
    left, result, columns = weight.clone(), torch.empty_like(weight), weight.shape[1]
    damped = hessian + 0.01 * hessian.diagonal().mean() * torch.eye(columns)
    inverse = torch.linalg.cholesky(torch.linalg.inv(damped.double()), upper=True).float()
    for first in range(0, columns, size):
        last = min(columns, first + size)
        _, scale, minimum = quantize(left[:, first:last], size)
        scale, minimum = scale.float()[:, 0], minimum.float()[:, 0]
        errors = torch.zeros(len(weight), last - first)
        for column in range(first, last):
            numbers = left[:, column]
            codes = ((numbers - minimum) / torch.where(scale == 0, 1.0, scale)).round().clamp(0, 15)
            result[:, column] = codes * scale + minimum
            errors[:, column - first] = (numbers - result[:, column]) / inverse[column, column]
            left[:, column:last] -= errors[:, column - first, None] * inverse[column, column:last]
        left[:, last:] -= errors @ inverse[first:last, last:]
    return result


@torch.inference_mode()
def by_groups(decoder: Decoder, inputs: dict[int, Tensor] | None, size: int) -> None:
    """Round the linear layers' weights to 4 bits by groups of `size` columns; without `inputs`, each number by itself.

    With uncorrelated inputs no column can compensate for another's error.
    """
    for linear in decoder.linears():
        independent = torch.eye(linear.weight.shape[1])
        hessian = independent if inputs is None else inputs[linear.weight.data_ptr()]
        linear.weight.copy_(calibrated(linear.weight, hessian, size))


def main() -> None:
    """Print a line for each case."""
    files = resolve_model(DEMO_MODEL, None, lambda *_: None)
    tokens = torch.tensor(load_tokenizer(files).encode(TEXT.read_text())[:TOKENS])
    exact: float | None = None
    for dtype, quantization in CASES:
        found = mean_nll(load(files, dtype, quantization), tokens)
        exact = found if exact is None else exact
        name = " ".join(filter(None, (str(dtype).removeprefix("torch."), quantization)))
        print(f"{name:13} {found:.4f} {(found / exact - 1) * 100:+.2f} %", flush=True)
    others = torch.tensor(load_tokenizer(files).encode(CALIBRATION.read_text())[: 4 * TOKENS])
    for size in GROUPS:
        for name in ("rounded", "calibrated"):
            decoder = load(files, torch.float32, None)
            by_groups(decoder, hessians(decoder, others) if name == "calibrated" else None, size)
            change = mean_nll(decoder, tokens) / cast("float", exact) - 1
            print(f"int4, groups of {size}, {name}: {change * 100:+.2f} %", flush=True)


if __name__ == "__main__":
    main()
