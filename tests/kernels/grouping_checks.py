"""Checks of the kernel that sorts rows by group."""

from __future__ import annotations

import torch

from octavo_engine.kernels.grouping import group_rows, group_rows_kernel
from tests.kernels.check import Build, Check
from tests.kernels.poison import poisoned


def _sorted_and_tiled(device: torch.device) -> None:
    """More rows than a block of the kernel, an empty group, rows in no group: a stable sort, cut into tiles."""
    ids = torch.randint(-1, 6, (1100,), device=device)  # 5 is outside of the 5 groups
    ids[ids == 2] = 3
    with poisoned():
        groups = group_rows(ids, num_groups=5, tile_rows=32)
    expected: list[int] = []
    tiles: list[list[int]] = []
    for group in range(5):
        rows = torch.nonzero(ids == group).flatten().tolist()
        begin, end = len(expected), len(expected) + len(rows)
        tiles += [[group, first, min(first + 32, end)] for first in range(begin, end, 32)]
        expected += rows
    assert groups.order[: len(expected)].tolist() == expected
    assert int(groups.num_tiles) == len(tiles) <= groups.max_tiles
    assert groups.tiles[: len(tiles)].tolist() == tiles


def _most_tiles(device: torch.device) -> None:
    """The bound of the tiles is reached, and holds, where every group has one row more than fills its tiles."""
    groups = group_rows(torch.arange(3, device=device).repeat(17), num_groups=3, tile_rows=16)
    assert int(groups.num_tiles) == groups.max_tiles == 6
    assert group_rows(torch.zeros(0, dtype=torch.int64, device=device), 3, 16).max_tiles == 0


CHECKS = [Check("sorted_and_tiled", _sorted_and_tiled), Check("most_tiles", _most_tiles)]

BUILDS = [
    Build(
        "group_rows",
        group_rows_kernel,
        {"order": "*i32", "tiles": "*i32", "num_tiles": "*i32", "group_of_row": "*i64", "num_rows": "i32"},
        {"GROUPS": 128, "GROUPS_PADDED": 128, "TILE_ROWS": 16, "BLOCK": 1024},
        max_registers=64,
        max_shared=5 * 1024,
        max_loop={"all": 336},
    )
]
