"""How well SmolLM2, the demo model, predicts a fixed text with quantized weights: `python -m bench.quantization_error`.

The text is the first 512 tokens of this repository's LICENSE; the figure is a token's mean negative log-likelihood.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from octavo_engine.attention.backend import StepInputs
from octavo_engine.attention.context import AttentionContext
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.model.configuration import quantized_online, read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import DEMO_MODEL, ModelFiles, resolve_model
from octavo_engine.text.tokenizer import load_tokenizer

TEXT = Path(__file__).parent.parent / "LICENSE"
TOKENS, BLOCK = 512, 16
CPU = torch.device("cpu")
CASES = (
    (torch.float32, None),
    (torch.bfloat16, None),
    *((torch.float32, name) for name in ("fp8", "int8", "int4")),
)


@torch.inference_mode()
def mean_nll(decoder: Decoder, tokens: Tensor) -> float:
    """Of all tokens [n] but the first, in one step."""
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
    """The model in `dtype` with its weights quantized while they are loaded."""
    return load_model(files, quantized_online(read_spec(files), quantization), CPU, dtype, lambda *_: None)


def main() -> None:
    """Print a line for each case."""
    files = resolve_model(DEMO_MODEL, None, lambda *_: None)
    tokens = torch.tensor(load_tokenizer(files).encode(TEXT.read_text())[:TOKENS])
    exact: float | None = None
    for dtype, quantization in CASES:
        found = mean_nll(load(files, dtype, quantization), tokens)
        exact = found if exact is None else exact
        name = quantization or str(dtype).removeprefix("torch.")
        print(f"{name:9} {found:.4f} {(found / exact - 1) * 100:+.2f} %", flush=True)


if __name__ == "__main__":
    main()
