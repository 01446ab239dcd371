"""What the programs with_*.py share: calibration, and how they hand over what they made."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file


def prompts(vocab_size: int) -> list[list[int]]:
    """Tokens to calibrate with."""
    return torch.randint(0, vocab_size, (8, 64), generator=torch.Generator().manual_seed(0)).tolist()


def save_dequantized(directory: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Save the weights in float32 that the tool itself makes of the checkpoint, beside it."""
    weights = {
        name: tensor.detach().float().contiguous().clone()
        for name, tensor in tensors.items()
        if name.endswith(".weight")
    }
    save_file(weights, directory.with_suffix(".dequantized"))


def make_each(tool: str, schemes: Iterable[str], make: Callable[[str, Path, Path], None]) -> None:
    """Make a checkpoint of each scheme from `source` in the folder that the command line names.

    `made.jsonl` there gets a line for each, with the error of those that failed.
    """
    folder = Path(sys.argv[1])
    for number, scheme in enumerate(schemes):
        line = {"tool": tool, "scheme": scheme, "directory": f"{number}", "error": None}
        try:
            make(scheme, folder / "source", folder / f"{number}")
        except Exception as error:  # noqa: BLE001 -- a scheme that a tool cannot make here does not end the others
            traceback.print_exc()
            line["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        with (folder / "made.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
