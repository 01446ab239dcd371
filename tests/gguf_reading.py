"""Makes the `gguf` package faster for tests: it takes seconds to read a file with a large vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import gguf_reader


@contextmanager
def quick_gguf() -> Iterator[None]:
    """Each file is read once meanwhile, by plain arrays, and each table of names is made once.

    transformers reads a file three times and makes the table for each module of a model. A part of a np.memmap is an
    object of that class, which takes ten times as long to make as an array's.
    """

    def plain(path: str, mode: Any) -> np.ndarray[Any, Any]:
        return np.asarray(np.memmap(path, mode=mode))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_reader, "np", SimpleNamespace(**{**vars(np), "memmap": plain}))
        patch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
        patch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        yield
