"""Measures how well SmolLM2 predicts a fixed text with quantized weights: `python -m bench.quantization_error`.

The text is the first 512 tokens of this repository's LICENSE; the figure is a token's mean negative log-likelihood.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from octavo_engine.attention.backend import StepInputs
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.kernels.cpu.quantized import unpack
from octavo_engine.model.configuration.gguf_blocks import quantized
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.loader import load_model
from octavo_engine.model.quantization.int4 import GROUP, quantize
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
LARGEST, ROUNDS, TINY = 15, 3, 1e-12
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
    context = StepContext(
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


def squares_of_inputs(decoder: Decoder, tokens: Tensor) -> dict[int, Tensor]:
    """Return the sums of squares of the inputs of each linear layer [columns] over a text, by its weight's address."""
    found: dict[int, Tensor] = {}
    compute, product = decoder.compute, decoder.compute.product

    def recording(x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        found[weight.data_ptr()] = found.get(weight.data_ptr(), 0) + x.square().sum(0)
        return product(x, weight, bias, addend)

    object.__setattr__(compute, "product", recording)
    for part in tokens.split(TOKENS):
        mean_nll(decoder, part)
    object.__setattr__(compute, "product", product)
    return found


def rounded(group: Tensor, importance: Tensor) -> Tensor:
    """Return the columns of one group [rows, columns] rounded to 4 bits, with a scale and a whole zero for each row.

    The zero is that of the row's range, so that 0 stays 0. The scale is fitted by least squares, in which columns count
    by their `importance` [columns]: with the squares of inputs as llama.cpp's importance matrix.
    """
    low, high = group.amin(1, keepdim=True).clamp(max=0), group.amax(1, keepdim=True).clamp(min=0)
    scale = ((high - low) / LARGEST).clamp(min=TINY)
    zero = (-low / scale).round()
    for _ in range(ROUNDS):
        codes = ((group / scale).round() + zero).clamp(0, LARGEST) - zero
        fitted = (codes * group) @ importance / (codes.square() @ importance).clamp(min=TINY)
        scale = fitted.unsqueeze(1).clamp(min=TINY)
    return (((group / scale).round() + zero).clamp(0, LARGEST) - zero) * scale


@torch.inference_mode()
def by_groups(decoder: Decoder, inputs: dict[int, Tensor] | None, size: int) -> None:
    """Round the linear layers' weights to 4 bits by groups of `size` columns, which are alike without `inputs`."""
    for linear in decoder.linears():
        alike = torch.ones(linear.weight.shape[1])
        importance = alike if inputs is None else inputs[linear.weight.data_ptr()]
        groups = zip(linear.weight.split(size, dim=1), importance.split(size), strict=True)
        linear.weight.copy_(torch.cat([rounded(*group) for group in groups], dim=1))


@torch.inference_mode()
def beside_the_files_groups(decoder: Decoder) -> None:
    """Round the linear layers' weights as `--quantization int4`, by groups that begin within a group of the file."""
    for linear in decoder.linears():
        moved = linear.weight.roll(GROUP // 2, dims=1)
        codes, scale, minimum = quantize(moved)
        groups = unpack(codes, 4).float().view(len(moved), -1, GROUP)
        numbers = groups * scale.float().unsqueeze(-1) + minimum.float().unsqueeze(-1)
        linear.weight.copy_(numbers.flatten(1).roll(-GROUP // 2, dims=1))


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
    for name in ("int4, groups not the file's", "int4, groups of 128, rounded", "int4, groups of 128, calibrated"):
        decoder = load(files, torch.float32, None)
        if "128" in name:
            by_groups(decoder, squares_of_inputs(decoder, others) if "calibrated" in name else None, 128)
        else:
            beside_the_files_groups(decoder)
        change = mean_nll(decoder, tokens) / cast("float", exact) - 1
        print(f"{name}: {change * 100:+.2f} %", flush=True)


if __name__ == "__main__":
    main()
