"""Groups rows that are multiplied with the same weights: tokens by adapter, routed tokens by expert.

A counting sort on the device whose grid and results have sizes the host knows, so that a CUDA graph can hold it. The
rows of a group keep their order, which makes everything that follows deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class RowGroups:
    """N rows in tiles of at most `tile_rows`, each tile of one group; tensors int32 on the device."""

    order: torch.Tensor
    """[N] row numbers, by group and then by number; after those that are in a group, undefined."""
    tiles: torch.Tensor
    """[max_tiles, 3]: of each tile its group and where in `order` it begins and ends; undefined from `num_tiles` on."""
    num_tiles: torch.Tensor
    """[1]"""
    tile_rows: int

    @property
    def max_tiles(self) -> int:
        """Return an upper bound of the number of tiles, which is the size of the grid."""
        return self.tiles.shape[0]


@triton.jit(do_not_specialize=["tiles", "num_tiles", "num_rows"])
def group_rows_kernel(
    order,  # [N] int32
    tiles,  # [max_tiles, 3] int32
    num_tiles,  # [1] int32
    group_of_row,  # [N], integers
    num_rows,
    GROUPS: tl.constexpr,
    GROUPS_PADDED: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program lists the rows and tiles of one group; to know where they begin it counts all groups itself."""
    group = tl.program_id(0)
    counts = tl.zeros([GROUPS_PADDED], dtype=tl.int32)
    for start in range(0, num_rows, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        groups = tl.load(group_of_row + rows, mask=rows < num_rows, other=-1).to(tl.int32)
        counts += tl.histogram(groups, GROUPS_PADDED, mask=(groups >= 0) & (groups < GROUPS))
    needed = (counts + TILE_ROWS - 1) // TILE_ROWS
    if group == 0:
        tl.store(num_tiles, tl.sum(needed))
    number = tl.arange(0, GROUPS_PADDED)
    first_tile = tl.sum(tl.where(number < group, needed, 0))
    begin = tl.sum(tl.where(number < group, counts, 0))
    end = begin + tl.sum(tl.where(number == group, counts, 0))

    for first in range(begin, end, TILE_ROWS):
        tile = tiles + (first_tile + (first - begin) // TILE_ROWS) * 3
        tl.store(tile, group)
        tl.store(tile + 1, first)
        tl.store(tile + 2, tl.minimum(first + TILE_ROWS, end))
    for start in range(0, num_rows, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        mine = tl.load(group_of_row + rows, mask=rows < num_rows, other=-1).to(tl.int32) == group
        tl.store(order + begin + tl.cumsum(mine.to(tl.int32)) - 1, rows, mask=mine)
        begin += tl.sum(mine.to(tl.int32))


def group_rows(group_of_row: torch.Tensor, num_groups: int, tile_rows: int) -> RowGroups:
    """Sort rows by `group_of_row` [N] (int32 or int64); a row whose number is outside 0..num_groups-1 is in no group.

    `tile_rows` is a power of two, 16 or more. Nothing waits for the device.
    """
    rows = group_of_row.shape[0]
    max_tiles = rows // tile_rows + min(rows, num_groups)  # every group that has rows may have one partly filled tile
    empty = torch.empty(rows + max_tiles * 3 + 1, dtype=torch.int32, device=group_of_row.device)
    order, tiles, num_tiles = empty.split((rows, max_tiles * 3, 1))
    groups = RowGroups(order, tiles.view(max_tiles, 3), num_tiles, tile_rows)
    if rows:
        group_rows_kernel[(num_groups,)](
            order,
            tiles,
            num_tiles,
            group_of_row.contiguous(),
            rows,
            GROUPS=num_groups,
            GROUPS_PADDED=triton.next_power_of_2(num_groups),
            TILE_ROWS=tile_rows,
            BLOCK=_BLOCK,
        )
    return groups


@triton.jit
def tile_rows(order, tiles, tile, TILE_ROWS: tl.constexpr):
    """Return a tile's group, its places in the order, its rows (0 beyond the last one), and which of them exist."""
    group = tl.load(tiles + tile * 3).to(tl.int64)
    places = tl.load(tiles + tile * 3 + 1) + tl.arange(0, TILE_ROWS)
    exists = places < tl.load(tiles + tile * 3 + 2)
    rows = tl.load(order + places, mask=exists, other=0).to(tl.int64)
    return group, places.to(tl.int64), rows, exists
