"""The activation functions of feed-forwards, by the names that config.json has for them."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def _tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    # The same function as gelu_pytorch_tanh; transformers writes it out, which in half precision rounds more often.
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
}
