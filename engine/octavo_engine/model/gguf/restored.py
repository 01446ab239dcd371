"""How values that the converter has changed become those of Hugging Face's checkpoints again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # imported where it is used: all who read a header import this module
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """What is done to one tensor of the file while it is read."""

    values: Callable[[Array], Array] | None = None
    """Of the dequantized numbers, float32."""
    rows: Array | None = None
    """The file's row for each of the checkpoint's rows, int64."""
    columns: Array | None = None
    """The file's column for each of the checkpoint's columns, int64."""


UNCHANGED = Restored()


def _log_of_negated(values: Array) -> Array:
    import numpy as np

    with np.errstate(all="ignore"):  # a number that is not negative becomes one that is not finite, which is refused
        return np.asarray(np.log(-values))


STATE_DECAY: Mapping[str, Restored] = {".A_log": Restored(values=_log_of_negated)}
"""The rates at which states fade, stored as -exp(A_log)."""


def untiled(groups: int, count: int, size: int, before: int = 0) -> Array:
    """Return the stored place of each of `before` numbers and of `groups` * `count` heads of `size` numbers.

    The file has the first head of all groups, then the second of all groups, and so on; the checkpoint has one group
    after another.
    """
    import numpy as np

    heads = np.arange(groups * count).reshape(count, groups).T.reshape(-1, 1)
    places = (heads * size + np.arange(size)).reshape(-1)
    return np.concatenate([np.arange(before), before + places])


def unpaired(heads: int, size: int) -> Array:
    """Return the stored place of each number of `heads` heads, whose halves lie in turn in the file."""
    import numpy as np

    return (np.arange(heads)[:, None] * size + untiled(2, size // 2, 1)).reshape(-1)
