"""Checks of paged attention against attention in float64, over pairs of all parameters that shape it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product

import torch
import triton

from octavo_engine.attention.alibi import ALiBi, alibi_slopes
from octavo_engine.attention.backend import AttentionVariant, LayerCache, StepInputs
from octavo_engine.attention.torch_reference import to_cache
from octavo_engine.attention.triton import TritonAttention
from octavo_engine.kernels.attention.attention_reduce import attention_reduce_kernel
from octavo_engine.kernels.attention.attention_segments import (
    ContextSplit,
    PagedSequences,
    list_segments_kernel,
    max_segments,
)
from octavo_engine.kernels.attention.paged_attention import (
    paged_attention,
    scratch_floats,
    split_of,
    tile_shape,
)
from octavo_engine.kernels.attention.paged_attention_kernel import paged_attention_kernel
from octavo_engine.kernels.gpu_limits import HOPPER_SHARED_MEMORY
from tests.kernels.by_bits import by_bits
from tests.kernels.check import Build, Check

FP8 = torch.float8_e4m3fn
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    """One step of attention; `lens` are (query, context) lengths."""

    lens: tuple[tuple[int, int], ...]
    group: int = 4
    kv_heads: int = 1
    head_dim: int = 64
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    alibi: str | None = None
    """`exact` or `rounded`."""
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None
    """None: `dtype`."""


@dataclass(frozen=True)
class Step:
    """A case with random numbers. The cache is NaN wherever no context lies, and so is block 0, which is unowned."""

    case: Case
    inputs: StepInputs
    query: torch.Tensor
    cache: LayerCache
    keys: list[torch.Tensor]
    """Of each sequence, as the cache holds them: [context, K, D], float64."""
    values: list[torch.Tensor]
    variant: AttentionVariant

    def launches(self) -> tuple[PagedSequences, ...]:
        """Return the launches that the backend gives to the kernels."""
        return TritonAttention().prepare(self.inputs, 0, self.case.block_size, self.case.window).launches

    def split(self, sequences: PagedSequences) -> ContextSplit:
        """Return how the backend would have contexts of a launch cut."""
        alibi = self.variant.alibi is not None
        return split_of(sequences, self.query, self.cache.key, self.case.window, alibi=alibi)

    def attend(self, launches: tuple[PagedSequences, ...] | None = None, programs: int | None = None) -> torch.Tensor:
        """Attend with NaN in output and scratch before; so many `programs` share a list, if they are given."""
        case, device = self.case, self.query.device
        output, alibi = torch.full_like(self.query, torch.nan), self.variant.alibi
        size = scratch_floats(case.group * case.kv_heads, case.kv_heads, case.head_dim)
        scratch = torch.full((size,), torch.nan, device=device)
        for sequences in self.launches() if launches is None else launches:
            split = self.split(sequences)
            paged_attention(
                output,
                self.query,
                self.cache.key,
                self.cache.value,
                sequences,
                replace(split, programs=programs or split.programs),
                scratch,
                scale=self.variant.scale,
                softcap=self.variant.softcap,
                sinks=self.variant.sinks,
                alibi=None if alibi is None else alibi.slopes,
                alibi_factor=1.0 if alibi is None else alibi.factor,
                alibi_rounded=alibi is not None and alibi.rounded,
                window=case.window,
                key_scale=self.cache.key_scale,
                value_scale=self.cache.value_scale,
            )
        return output

    def expected(self) -> torch.Tensor:
        """[T, H, D] float64, row by row of what each sees."""
        results = []
        for s, (count, context) in enumerate(self.case.lens):
            first = int(self.inputs.cu_query_lens[s])
            query = self.query[first : first + count].double()
            key, value = (x.repeat_interleave(self.case.group, 1) for x in (self.keys[s], self.values[s]))
            scores = torch.einsum("qhd,chd->hqc", query, key) * self.variant.scale
            if self.variant.softcap is not None:
                scores = self.variant.softcap * torch.tanh(scores / self.variant.softcap)
            if self.variant.alibi is not None:
                scores = scores + self.variant.alibi.bias(context).double()[:, None]
            behind = torch.arange(context - count, context)[:, None] - torch.arange(context)[None]
            seen = (behind >= 0) & (behind < (self.case.window or context + 1))
            scores = scores.masked_fill(~seen.to(scores.device), -torch.inf)
            if self.variant.sinks is not None:
                sinks = self.variant.sinks.double()[:, None, None].expand(-1, count, 1)
                scores = torch.cat((scores, sinks), dim=-1)
            weights = scores.softmax(-1)[..., :context]
            results.append(torch.einsum("hqc,chd->qhd", weights, value))
        return torch.cat(results)


def make_step(case: Case, device: torch.device) -> Step:
    """Fresh random numbers and shuffled blocks for `case`; float16 where the interpreter can multiply no bfloat16."""
    if device.type == "cpu" and case.dtype == torch.bfloat16 and case.cache_dtype != FP8:
        case = replace(case, dtype=torch.float16)
    cache_dtype = case.cache_dtype or case.dtype
    key_scale, value_scale = (0.02, 0.5) if cache_dtype == FP8 else (1.0, 1.0)
    counts = [-(-context // case.block_size) for _, context in case.lens]
    owned = (1 + torch.randperm(sum(counts))).split(counts)
    table = torch.nn.utils.rnn.pad_sequence(list(owned), batch_first=True)
    table = torch.nn.functional.pad(table, (0, 2))
    shape = (1 + sum(counts), case.block_size, case.kv_heads, case.head_dim)
    caches, contents = [], []
    for scale in (key_scale, value_scale):
        cache = torch.full(shape, torch.nan).to(cache_dtype)
        new = [to_cache(torch.randn(c, *shape[2:]).to(case.dtype), cache_dtype, scale) for _, c in case.lens]
        for blocks, x in zip(owned, new, strict=True):
            places = (blocks[:, None] * case.block_size + torch.arange(case.block_size)).flatten()[: len(x)]
            cache.flatten(0, 1)[places] = x
        caches.append(cache.to(device))
        contents.append([x.double().mul(scale).to(device) for x in new])
    query_lens = tuple(count for count, _ in case.lens)
    tokens, heads = sum(query_lens), case.group * case.kv_heads
    query = torch.randn(tokens, heads + 2, case.head_dim).to(device, case.dtype)[:, 1:-1]  # a slice, as layers give
    sinks = torch.randn(heads).mul(2).to(device, case.dtype) if case.sinks else None
    inputs = StepInputs(
        token_ids=torch.zeros(tokens, dtype=torch.int32, device=device),
        positions=torch.zeros(tokens, dtype=torch.int64, device=device),
        cu_query_lens=torch.tensor([0, *query_lens], device=device).cumsum(0).int(),
        context_lens=torch.tensor([c for _, c in case.lens], dtype=torch.int32, device=device),
        block_tables=(table.int().to(device),),
        slot_mapping=(torch.full((tokens,), -1, device=device),),
        token_indices=torch.arange(0, device=device),
        query_lens_host=query_lens,
        context_lens_host=tuple(c for _, c in case.lens),
    )
    cache = LayerCache(*caches, key_scale=key_scale, value_scale=value_scale)
    slopes = alibi_slopes(heads, 8.0).to(device)
    alibi = None if case.alibi is None else ALiBi(slopes, 0.7, case.alibi == "rounded")
    variant = AttentionVariant(1.3 * case.head_dim**-0.5, case.softcap, sinks, alibi)
    return Step(case, inputs, query, cache, *contents, variant)


def assert_right(output: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for rounding of the output's type; a NaN is never right."""
    tolerance = TOLERANCE[output.dtype]
    torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)


def check_case(case: Case, device: torch.device) -> None:
    """The kernels' results of `case` against the reference."""
    step = make_step(case, device)
    assert_right(step.attend(), step.expected())


LENS = {
    "one_token": ((1, 1),),
    "decodes": ((1, 1), (1, 15), (1, 64), (1, 65), (1, 300)),
    "boundaries": ((16, 16), (15, 15), (17, 65), (32, 64)),
    "mixed": ((1, 40), (1, 1), (7, 7), (1, 70), (20, 45)),
    "few_queries": ((2, 70), (3, 200), (1, 9)),
    "long_chunk": ((40, 300),),
}
GRID = {
    "lens": list(LENS),
    "group": [1, 3, 4, 8, 16],
    "head_dim": [64, 80, 96, 128, 256],
    "block_size": [16, 32, 64, 128],
    "window": [None, 1, 16, 33, 150],
    "kv_heads": [1, 2],
    "softcap": [None, 5.0],
    "sinks": [False, True],
    "alibi": [None, "exact", "rounded"],
    "dtype": [torch.bfloat16, torch.float16, torch.float32],
    "cache_dtype": [None, FP8],
}


def all_pairs(grid: dict[str, list[object]]) -> list[dict[str, object]]:
    """Rows in which every two values of different columns meet at least once (greedy; Cohen et al. 1997, AETG)."""
    names = list(grid)
    missing = {
        frozenset(((a, x), (b, y)))
        for a, b in combinations(names, 2)
        for x, y in product(range(len(grid[a])), range(len(grid[b])))
    }
    rows: list[dict[str, object]] = []
    while missing:
        row = dict(min(missing, key=sorted))
        for name in names:
            if name not in row:
                gains = [
                    sum(frozenset(((name, value), other)) in missing for other in row.items())
                    for value in range(len(grid[name]))
                ]
                row[name] = gains.index(max(gains))
        missing -= {frozenset(pair) for pair in combinations(row.items(), 2)}
        rows.append({name: grid[name][row[name]] for name in names})
    return rows


def _a_long_context_among_many(device: torch.device) -> None:
    """Check that it is cut although there are many sequences, and that the lengths of others change no digit of it."""
    lens = (*((1, 1 + s % 40) for s in range(129)), (1, 6300))
    step = make_step(Case(lens, dtype=torch.float32), device)
    (launch,) = step.launches()
    output = step.attend((launch,))
    assert_right(output, step.expected())
    listed = step.split(launch).listed
    assert listed is not None and int(listed[0]) == 129 + 3
    launch.context_lens[:64] = 1
    assert torch.equal(step.attend((launch,))[64:], output[64:])


def _programs_share_a_list(device: torch.device) -> None:
    """Check that three programs compute 17 segments of two KV heads, digit by digit as one program for each does."""
    step = make_step(Case(((1, 600), (3, 64), (1, 1000), (2, 390)), kv_heads=2), device)
    launch = PagedSequences(*_tensors(step), num_tokens=7, max_query_len=3)
    listed = step.split(launch).listed
    assert listed is not None and listed[: int(listed[0]) + 1].tolist() == [
        17,
        *range(5),
        max_segments(2),
        *(2 * max_segments(2) + segment for segment in range(8)),
        *(3 * max_segments(2) + segment for segment in range(3)),
    ]
    shared = step.attend((launch,), programs=3)
    assert_right(shared, step.expected())
    assert torch.equal(shared, step.attend((launch,)))


def _tensors(step: Step) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return step.inputs.block_tables[0], step.inputs.cu_query_lens, step.inputs.context_lens


def _a_short_chunk_after_a_long_prefix(device: torch.device) -> None:
    """Check that its few tiles are cut, each into segments of what it sees, and that many tiles are not."""
    step = make_step(Case(((40, 1500), (1, 9), (33, 700)), window=900, dtype=torch.float32), device)
    launch = PagedSequences(*_tensors(step), num_tokens=74, max_query_len=40)
    assert (split := step.split(launch)).listed is None and split.launched == 3
    assert_right(step.attend((launch,)), step.expected())
    assert step.split(replace(launch, num_tokens=2048)).launched == 1


def _contexts_of_very_many_are_whole(device: torch.device) -> None:
    """Check that there is a list of as many segments as sequences, from 257 on."""
    step = make_step(Case(((1, 1500),)), device)
    split = step.split(_sequences(step, 257))
    assert split.launched == 1 and split.listed is not None
    assert split.listed.tolist() == [257, *(max_segments(1) * s for s in range(257))]
    assert split.programs == 257


def _as_many_programs_share_a_list_as_have_registers(device: torch.device) -> None:
    """Check that those are three for each multiprocessor, two or one, as built (ROOFLINE.md)."""
    for case, programs in (
        (Case(((1, 100),), kv_heads=8, head_dim=64, alibi="exact"), 384),
        (Case(((1, 100),), kv_heads=8, head_dim=80), 384),
        (Case(((1, 100),), kv_heads=8, head_dim=128), 384),
        (Case(((1, 100),), kv_heads=8, head_dim=128, alibi="exact"), 256),
        (Case(((1, 100),), kv_heads=8, head_dim=80, alibi="rounded"), 256),
        (Case(((1, 100),), kv_heads=8, head_dim=128, cache_dtype=FP8), 256),
        (Case(((1, 100),), kv_heads=8, head_dim=256), 256),
        (Case(((8, 100),), kv_heads=8, head_dim=64), 128),
    ):
        step = make_step(case, device)
        assert step.split(_sequences(step, 49)).programs == programs, case


def _segments_fill_whole_turns(device: torch.device) -> None:
    """Check that equally long contexts of 8 KV heads are cut so that all 384 programs end together, or not at all."""
    step = make_step(Case(((1, 4096),), kv_heads=8, head_dim=64), device)
    for sequences, segments in ((8, 6), (16, 3), (32, 1), (64, 2)):
        listed = step.split(_sequences(step, sequences)).listed
        assert listed is not None and int(listed[0]) == sequences * segments, sequences


def _sequences(step: Step, count: int) -> PagedSequences:
    """Return the only sequence of `step` so many times."""
    (launch,), tokens = step.launches(), step.case.lens[0][0]
    return replace(
        launch,
        block_table=launch.block_table.expand(count, -1),
        cu_query_lens=tokens * torch.arange(count + 1, dtype=torch.int32, device=step.query.device),
        context_lens=launch.context_lens.repeat(count),
        num_tokens=count * tokens,
    )


def _rows_without_context(device: torch.device) -> None:
    """Check padding of a CUDA graph: no context gives zeros, no query leaves the output, other rows stay."""
    step = make_step(Case(((1, 5), (1, 70), (1, 1))), device)
    expected = step.expected()
    (launch,) = step.launches()
    launch.context_lens[0] = 0
    expected[0] = 0
    assert_right(step.attend((launch,)), expected)
    launch.cu_query_lens[3] = 2
    output = step.attend((launch,))
    assert_right(output[:2], expected[:2])
    assert bool(output[2].isnan().all())


def _padding_of_a_mixed_step(device: torch.device) -> None:
    """Check a step padded as a CUDA graph with chunks is: the results of its tokens are right, and padding gives zeros.

    Two decodes and room for two more without a token, two chunks and room for two more, and last a sequence without
    context that has all tokens of padding. Lengths on the host are bounds.
    """
    tokens = 96
    for window in (None, 200):
        case = Case(((1, 700), (1, 5), (40, 1500), (9, 9)), window=window, dtype=torch.float32)
        step = make_step(case, device)
        starts = torch.tensor([0, 1, 2, 2, 2, 42, 51, 51, 51, tokens], dtype=torch.int32, device=device)
        contexts = torch.tensor([700, 5, 0, 0, 1500, 9, 0, 0, 0], dtype=torch.int32, device=device)
        table = step.inputs.block_tables[0]
        table = torch.cat((table[:2], torch.zeros_like(table[:2]), table[2:], torch.zeros_like(table[:3])))
        rest = tokens - len(step.query)
        inputs = replace(
            step.inputs,
            positions=torch.zeros(tokens, dtype=torch.int64, device=device),
            cu_query_lens=starts,
            context_lens=contexts,
            block_tables=(table,),
            query_lens_host=(1,) * 4 + (tokens, 0, 0, 0, 0),
            context_lens_host=(table.shape[1] * case.block_size,) * 9,
        )
        padded = replace(step, inputs=inputs, query=torch.cat((step.query, step.query[:rest])))
        decodes, chunks = padded.launches()
        assert step.split(decodes).launched > 1
        assert (step.split(chunks).launched > 1) == (window is None)
        output = padded.attend()
        assert_right(output[:-rest], step.expected())
        assert not output[-rest:].any()


def _layers_of_a_group_differ_in_heads(device: torch.device) -> None:
    """Check that each layer's launches are as its own heads need them (Laguna): tiles have room for fewer tokens.

    Of 16 heads, 3 query tokens are two tiles and of 8 one, so that one layer shares a list and the other has none.
    """
    for lens, groups in ((((40, 40),), (6, 8)), (((3, 70),), (16, 8)), (((3, 70),), (8, 16))):
        step = make_step(Case(lens, max(groups), head_dim=16, dtype=torch.float32), device)
        backend = TritonAttention()
        metadata = backend.prepare(step.inputs, 0, step.case.block_size, None)
        for group in groups:
            layer = replace(step, case=replace(step.case, group=group), query=step.query[:, :group])
            assert_right(backend.attend(layer.query, layer.cache, metadata, layer.variant), layer.expected())
        ((first,), (second,)) = (metadata.splits[group] for group in groups)
        assert (first.listed is None, first.programs) != (second.listed is None, second.programs)


def _tokens_of_no_sequence(device: torch.device) -> None:
    """The backend's result for them is zero."""
    step = make_step(Case(((1, 5), (3, 20), (1, 9))), device)
    expected = step.expected()
    inputs = replace(
        step.inputs,
        cu_query_lens=step.inputs.cu_query_lens[:3],
        context_lens=step.inputs.context_lens[:2],
        block_tables=(step.inputs.block_tables[0][:2],),
        query_lens_host=step.inputs.query_lens_host[:2],
        context_lens_host=step.inputs.context_lens_host[:2],
    )
    backend = TritonAttention()
    metadata = backend.prepare(inputs, 0, step.case.block_size, None)
    output = backend.attend(step.query, step.cache, metadata, step.variant)
    assert_right(output[:4], expected[:4])
    assert not output[4:].any()


def _replayed_with_other_contexts(device: torch.device) -> None:
    """Check that launches prepared for short contexts are right for all contexts of the block table, as in a graph."""
    long = make_step(Case(((1, 500), (1, 130), (1, 64))), device)
    inputs = replace(long.inputs, context_lens=torch.ones_like(long.inputs.context_lens), context_lens_host=(1, 1, 1))
    metadata = TritonAttention().prepare(inputs, 0, long.case.block_size, None)
    inputs.context_lens.copy_(long.inputs.context_lens)
    assert_right(long.attend(metadata.launches), long.expected())


def _company_changes_no_digit(device: torch.device) -> None:
    """Check that a context's segments depend on its length and a step's tokens, not on its table or on other rows."""
    step = make_step(Case(((1, 1000), (1, 130), (1, 64)), dtype=torch.float32), device)
    (launch,) = step.launches()
    together = step.attend((launch,))
    alone = replace(
        launch,
        block_table=launch.block_table[1:2, : 130 // 16 + 1],
        cu_query_lens=launch.cu_query_lens[1:3],
        context_lens=launch.context_lens[1:2],
    )
    assert torch.equal(step.attend((alone,))[1], together[1])


def _sinks_take_all_or_nothing(device: torch.device) -> None:
    """A large logit leaves the values no weight, a small one leaves them all, in one segment and in many."""
    step = make_step(Case(((1, 20), (1, 700)), sinks=True, dtype=torch.float32), device)
    assert step.variant.sinks is not None
    step.variant.sinks[:2], step.variant.sinks[2:] = 1e4, -1e4
    output = step.attend()
    assert not output[:, :2].any()
    assert_right(output[:, 2:], replace(step, variant=replace(step.variant, sinks=None)).expected()[:, 2:])


def _segments_end_with_the_window(device: torch.device) -> None:
    """No more segments are launched than a window has tiles, however long the context may be."""
    step = make_step(Case(((1, 1000),), window=100), device)
    (launch,) = step.launches()
    assert split_of(launch, step.query, step.cache.key, None).launched == 17
    assert step.split(launch).launched == 3
    assert_right(step.attend(), step.expected())


def _what_has_left_the_window_is_not_read(device: torch.device) -> None:
    """Its blocks are another's by now, in which numbers may be none: here block 0 stands in their places."""
    step = make_step(Case(((1, 300), (40, 300), (3, 90)), window=33, dtype=torch.float32), device)
    for s, (count, context) in enumerate(step.case.lens):
        step.inputs.block_tables[0][s, : (context - count + 1 - 33) // 16] = 0
    assert_right(step.attend(), step.expected())


def _named(row: dict[str, object]) -> str:
    return "-".join(str(value).removeprefix("torch.") for value in row.values())


def _contexts_of_8k(group: int, head_dim: int, block_size: int, window: int | None) -> Case:
    """A decode in 16 segments with the last one not full, and the end of a prompt."""
    return Case(((1, 8192 - 70), (5, 8192)), group, head_dim=head_dim, block_size=block_size, window=window)


def _long(group: int, kv_heads: int, head_dim: int, cache_dtype: torch.dtype | None, window: int | None) -> Case:
    lens = ((1, 8192), (1, 4097), (1, 30000), (300, 8192), (1111, 1111))
    return Case(lens, group, kv_heads, head_dim, window=window, cache_dtype=cache_dtype)


CHECKS = [
    *(
        Check(_named(row), partial(check_case, Case(**(row | {"lens": LENS[str(row["lens"])]}))))  # type: ignore[arg-type]
        for row in ({**row, "sinks": row["sinks"] and row["alibi"] is None} for row in all_pairs(GRID))
    ),
    *(
        Check(f"group_of_{group}", partial(check_case, Case(LENS["mixed"], group, dtype=torch.float32)))
        for group in (5, 32)
    ),
    *(
        Check(f"contexts_of_8k-{'-'.join(map(str, shape))}", partial(check_case, _contexts_of_8k(*shape)))
        for shape in ((4, 64, 16, None), (1, 80, 128, 4096), (2, 64, 64, 100))
    ),
    *(
        Check(f"fp8_by_bits_{lens}", by_bits(partial(check_case, Case(LENS[lens], cache_dtype=FP8, window=window))))
        for lens, window in (("decodes", None), ("mixed", 40))
    ),
    Check("a_long_context_among_many", _a_long_context_among_many),
    Check("programs_share_a_list", _programs_share_a_list),
    Check("a_short_chunk_after_a_long_prefix", _a_short_chunk_after_a_long_prefix),
    Check("contexts_of_very_many_are_whole", _contexts_of_very_many_are_whole),
    Check("as_many_programs_share_a_list_as_have_registers", _as_many_programs_share_a_list_as_have_registers),
    Check("rows_without_context", _rows_without_context),
    Check("padding_of_a_mixed_step", _padding_of_a_mixed_step),
    Check("layers_of_a_group_differ_in_heads", _layers_of_a_group_differ_in_heads),
    Check("tokens_of_no_sequence", _tokens_of_no_sequence),
    Check("replayed_with_other_contexts", _replayed_with_other_contexts),
    Check("company_changes_no_digit", _company_changes_no_digit),
    Check("sinks_take_all_or_nothing", _sinks_take_all_or_nothing),
    Check("segments_fill_whole_turns", _segments_fill_whole_turns),
    Check("segments_end_with_the_window", _segments_end_with_the_window),
    Check("what_has_left_the_window_is_not_read", _what_has_left_the_window_is_not_read),
    *(
        Check(f"long-{'-'.join(map(str, shape))}", partial(check_case, _long(*shape)), large=True)
        for shape in (
            (4, 8, 128, None, None),
            (4, 8, 128, FP8, None),
            (8, 8, 64, None, 128),
            (2, 8, 256, None, 4096),
            (1, 16, 96, None, None),
        )
    ),
]

_TYPES = (
    dict.fromkeys(("output", "query", "key_cache", "value_cache", "sinks"), "*bf16:16")
    | {"alibi": "*fp32:16", "alibi_scale": "fp32", "partial_sums": "*fp32:16", "listed": "*i32:16"}
    | dict.fromkeys(("partial_maxima", "partial_totals"), "*fp32")
    | dict.fromkeys(("block_table", "cu_query_lens", "context_lens"), "*i32")
    | dict.fromkeys(("query_stride", "query_head_stride", "output_stride", "output_head_stride"), "i32:16")
    | dict.fromkeys(("num_seqs", "table_stride", "one_query", "most", "least", "shares"), "i32")
    | dict.fromkeys(("scale", "value_scale"), "fp32")
)
_VECTORS = "LDGSTS.E.BYPASS.128"
"""Keys and values on their way into shared memory, 16 bytes a thread, while products go on."""


def _build(
    name: str,
    case: Case,
    queries: int,
    *,
    registers: int,
    shared: int,
    loop: int,
    shared_memory: int,
    sass: tuple[str, ...] = (_VECTORS,),
    cut: bool = True,
) -> Build:
    """The attention kernel as `paged_attention` launches it for `case` with 8 KV heads."""
    tile = tile_shape(case.group, case.head_dim, queries, case.dtype, shared_memory)
    absent = () if queries <= tile.rows // case.group else ("listed",)
    absent += () if cut else ("partial_sums", "partial_maxima", "partial_totals")
    absent += () if case.sinks else ("sinks",)
    absent += () if case.alibi else ("alibi",)
    types = {n: _TYPES[n] for n in paged_attention_kernel.arg_names if n in _TYPES and n not in absent}
    if case.cache_dtype == FP8:
        types |= {"key_cache": "*fp8e4nv:16", "value_cache": "*fp8e4nv:16"}
    if case.dtype == torch.float32:
        types = {name: kind.replace("bf16", "fp32") for name, kind in types.items()}
    constants = dict.fromkeys(absent) | {
        "KV_HEADS": 8,
        "GROUP": case.group,
        "HEAD_DIM": case.head_dim,
        "HEAD_DIM_PADDED": triton.next_power_of_2(case.head_dim),
        "BLOCK_SIZE": case.block_size,
        "WINDOW": case.window or 0,
        "SOFTCAP": case.softcap or 0.0,
        "ALIBI": case.alibi or "none",
        "ROWS": tile.rows,
        "TILE_TOKENS": tile.tokens,
        "AT_A_TIME": 384 if tile.one_tile else 128,
        "MAX_SEGMENTS": max_segments(8),
    }
    limits = {"max_registers": registers, "max_shared": shared * 1024, "sass": sass, "max_loop": {"all": loop}}
    return Build(name, paged_attention_kernel, types, constants, tile.warps, tile.stages, **limits)


_GEMMA2 = Case((), group=2, head_dim=256, window=4096, softcap=50.0)
_GPT_OSS = Case((), group=8, head_dim=64, window=128, sinks=True)
_REDUCE = {
    "NUM_HEADS": 32,
    "TILE_QUERIES": 4,
    "HEAD_DIM": 128,
    "HEAD_DIM_PADDED": 128,
    "COLUMNS": 128,
    "WINDOW": 0,
    "TILE_TOKENS": 64,
    "AT_A_TIME": 384,
}
_WIDE = ("LDG.E.128",)
_reduce = partial(
    Build,
    kernel=attention_reduce_kernel,
    signature={n: _TYPES[n] for n in attention_reduce_kernel.arg_names if n in _TYPES},
    max_registers=128,
    max_shared=4096,
    max_loop={"all": 16},  # the search for a token's sequence
)


def builds_for(shared_memory: int) -> list[Build]:
    """The kernels as they are launched where one program may have so much shared memory; limits are Hopper's."""
    decode = partial(_build, queries=1, shared_memory=shared_memory)
    prefill = partial(_build, queries=4096, shared_memory=shared_memory, sass=("HGMMA", _VECTORS), cut=False)
    return [
        # Decode: 3 blocks of 128 threads fit a multiprocessor with 168 registers a thread and 75 KiB; of some only 2.
        decode("decode", Case((), head_dim=128), registers=144, shared=71, loop=384),
        decode("decode_64", Case((), head_dim=64), registers=80, shared=37, loop=256),
        decode("decode_80", Case((), head_dim=80), registers=168, shared=75, loop=404),
        decode("decode_256", Case((), head_dim=256), registers=168, shared=75, loop=384),
        decode("decode_fp8", Case((), head_dim=128, cache_dtype=FP8), registers=184, shared=40, loop=616),
        decode("decode_gemma2", _GEMMA2, registers=208, shared=75, loop=448),
        decode("decode_bloom", Case((), group=1, head_dim=128, alibi="exact"), registers=152, shared=71, loop=448),
        decode("decode_gpt_oss", _GPT_OSS, registers=80, shared=37, loop=288),
        # Prefill: 256 threads; 65,536 registers are 255 for each.
        prefill("prefill", Case((), head_dim=128), registers=184, shared=130, loop=520),
        prefill("prefill_64", Case((), head_dim=64), registers=128, shared=66, loop=432),
        prefill("prefill_256", Case((), head_dim=256), registers=240, shared=164, loop=504),
        prefill("prefill_fp8", Case((), head_dim=128, cache_dtype=FP8), registers=200, shared=98, loop=504),
        prefill("prefill_gemma2", _GEMMA2, registers=255, shared=164, loop=756),
        prefill("prefill_gpt_oss", _GPT_OSS, registers=168, shared=66, loop=500),
        # Chunks of so few tokens that each is one tile, which programs share as they do decodes.
        prefill("prefill_listed", Case((), head_dim=128), queries=32, registers=200, shared=130, loop=520, cut=True),
        # A short chunk on a long prefix.
        prefill("prefill_cut", Case((), head_dim=128), registers=200, shared=130, loop=520, cut=True),
        prefill("prefill_cut_256", Case((), head_dim=256), registers=240, shared=164, loop=504, cut=True),
        _reduce("attention_reduce", constants=_REDUCE | {"HEADS": 1, "MAX_SEGMENTS": 32}, sass=_WIDE),
        _reduce("attention_reduce_of_many", constants=_REDUCE | {"HEADS": 4, "MAX_SEGMENTS": 8}, sass=_WIDE),
        _reduce("attention_reduce_one_kv_head", constants=_REDUCE | {"HEADS": 1, "COLUMNS": 32, "MAX_SEGMENTS": 128}),
        Build(
            "list_segments",
            list_segments_kernel,
            {n: _TYPES[n] for n in list_segments_kernel.arg_names if n in _TYPES},
            {"AT_A_TIME": 384, "WINDOW": 0, "TILE_QUERIES": 4, "TILE_TOKENS": 64, "MAX_SEGMENTS": 16, "LANES": 512},
            max_registers=64,
            max_shared=4096,
            max_loop={"all": 480},  # two divisions find how many segments fill whole turns
        ),
    ]


def more_builds_for(shared_memory: int) -> list[Build]:
    """What odd models launch and what is compiled for minutes, for `devices.py` alone."""
    build = partial(_build, shared_memory=shared_memory, registers=255, shared=227, loop=9999)
    return [
        build("decode_fp8_256", Case((), head_dim=256, cache_dtype=FP8), queries=1),
        build("prefill_fp8_256", Case((), head_dim=256, cache_dtype=FP8), queries=4096, cut=False),
        build("prefill_512", Case((), head_dim=512), queries=4096, cut=False),
        build("prefill_float32", Case((), head_dim=256, dtype=torch.float32), queries=4096, cut=False),
    ]


BUILDS = builds_for(HOPPER_SHARED_MEMORY)
