"""Sampling: each row by its own parameters, seed and history alone."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from peak_memory import peak_memory

from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.model import footprint
from octavo_engine.request_checks import check_sampling
from octavo_engine.runner import sampling_table, state_table
from octavo_engine.runner.masks import Masks
from octavo_engine.runner.sampling import gumbel_max, logits_processors, sampler
from octavo_engine.runner.sampling.gumbel_max import gumbel_noise, keep_thresholds
from octavo_engine.runner.sampling.logits_processors import process_logits
from octavo_engine.runner.sampling.readback import Readback
from octavo_engine.runner.sampling_table import PENALIZES, needs_of
from octavo_engine.sampling_params import SamplingParams
from tests.engine.helpers.pretended import bits, masks_of
from tests.kernels.sampling_checks import reference_uniform
from tests.sampling import SampleRow, prepared
from tests.sampling import sample_rows as sample

VOCAB = 4000


def row(position: int = 5, prompt_len: int = 5, seed: int = 7, **params: object) -> SampleRow:
    return SampleRow(SamplingParams(max_tokens=9, **params), seed, position, prompt_len)  # type: ignore[arg-type]


def logits(seed: int, rows: int = 1, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def draw(values: torch.Tensor, count: int, **params: object) -> Counter[int]:
    """Count how often each token is sampled over `count` positions."""
    counts: Counter[int] = Counter()
    for start in range(0, count, 500):
        rows = [row(position=start + i, **params) for i in range(500)]
        counts.update(sample(values.expand(500, -1), rows, [None] * 500).tokens.tolist())
    return counts


def test_greedy_takes_the_largest_logit() -> None:
    values = logits(1, rows=3)
    sampled = sample(values, [row(temperature=0.0)] * 3, [None] * 3)
    assert sampled.tokens.tolist() == values.argmax(-1).tolist()


def test_tokens_come_as_often_as_their_probability() -> None:
    values = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    counts = draw(values, 20_000, temperature=0.7)
    probs = torch.softmax(values[0] / 0.7, -1).tolist()
    chi2 = sum((counts[i] - 20_000 * p) ** 2 / (20_000 * p) for i, p in enumerate(probs))
    assert chi2 < 16.3, f"chi-squared {chi2:.1f} with 3 degrees of freedom (p < 0.001)"


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.6}, {0}),
        ({"top_p": 0.7}, {0, 1}),
        ({"min_p": 0.3}, {0, 1}),
        ({"top_k": 3, "top_p": 0.95}, {0, 1, 2}),
    ],
)
def test_filters_keep_exactly_the_tokens_they_should(params: dict[str, float], allowed: set[int]) -> None:
    """Probabilities 0.643, 0.237, 0.087, 0.032."""
    assert set(draw(torch.tensor([[2.0, 1.0, 0.0, -1.0]]), 4000, **params)) == allowed


def test_top_p_beyond_the_sorted_candidates_still_holds_its_mass() -> None:
    """A nearly flat distribution: 90 % of the mass needs far more tokens than are sorted at first."""
    values = logits(2) * 0.01
    counts = draw(values, 20_000, top_p=0.9)
    kept = values[0].argsort(descending=True)[: math.ceil(0.93 * VOCAB)].tolist()
    assert set(counts) <= set(kept)
    assert len(counts) > 3000


def test_a_token_depends_on_seed_and_position_and_nothing_else() -> None:
    values = logits(3, rows=8)
    rows = [row(position=10 + i, seed=i, temperature=0.9, top_p=0.9) for i in range(8)]
    together = sample(values, rows, [None] * 8).tokens.tolist()
    alone = [sample(values[i : i + 1], [rows[i]], [None]).tokens.item() for i in range(8)]
    mixed = sample(values, [row(temperature=0.0), *rows[1:]], [None] * 8).tokens.tolist()
    assert together == alone
    assert mixed[1:] == alone[1:]


def test_noise_is_even_and_differs_by_seed_position_and_token() -> None:
    noise = torch.cat([gumbel_noise(seed, position, 100) for seed in range(-5, 5) for position in range(10)])
    assert len(set(noise.tolist())) > 9_990
    numbers = torch.exp(-torch.exp(-noise.double()))
    buckets = Counter((numbers * 10).long().tolist())
    assert all(abs(buckets[i] - 1000) < 110 for i in range(10))


def test_noise_is_made_of_the_same_numbers_as_on_a_gpu() -> None:
    for seed, position in ((7, 5), (-3, 0), (2**63 - 1, 131_071)):
        numbers = reference_uniform(seed, position, range(5000)).double()
        expected = -torch.log(-torch.log1p(-numbers.clamp(max=1 - 2.0**-24)))
        torch.testing.assert_close(gumbel_noise(seed, position, 5000).double(), expected, atol=2e-6, rtol=2e-6)


def test_logits_that_are_rounded_a_little_differently_give_the_same_tokens() -> None:
    """As in another batch. Drawn by inverting the cumulative distribution, 1 token in 400 changed."""
    values = logits(10, rows=50, vocab=20_000)
    rounded = values + torch.randn(values.shape, generator=torch.Generator().manual_seed(11)) * 3e-6
    for start in range(0, 2000, 50):
        rows = [row(position=start + i) for i in range(50)]
        tokens = sample(values, rows, [None] * 50).tokens.tolist()
        assert sample(rounded, rows, [None] * 50).tokens.tolist() == tokens


FILTERS = [
    {},
    {"top_k": 5},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"top_p": 0.9999999},
    {"min_p": 0.02},
    {"top_k": 50, "top_p": 0.5},
]


@pytest.mark.skipif(cpu_kernels() is None, reason="the C kernels cannot be compiled here")
@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0, 30.0])
def test_pytorch_and_the_c_kernels_draw_the_same_tokens(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all logits are equal, where some are forbidden, and where some rows are broken."""
    rows = [row(position=5 + i, temperature=t, **params) for i, params in enumerate(FILTERS) for t in (0.3, 1.0, 50.0)]
    values = logits(12, rows=len(rows), vocab=3001) / 3 * spread
    values[::2, 1000:2000] = -torch.inf
    values[4, 7] = math.nan
    by_kernels = sample(values, rows, [None] * len(rows))
    monkeypatch.setattr(gumbel_max, "cpu_kernels", lambda: None)
    by_torch = sample(values, rows, [None] * len(rows))
    assert by_kernels.tokens.tolist() == by_torch.tokens.tolist()
    assert by_kernels.finite.tolist() == by_torch.finite.tolist()


@pytest.mark.skipif(cpu_kernels() is None, reason="the C kernels cannot be compiled here")
@pytest.mark.parametrize("vocab", [1, 7, 255, 256, 257, 3001])
def test_pytorch_and_the_c_kernel_find_the_same_likeliest_tokens(vocab: int) -> None:
    """The first of equal ones, in any block and lane, and also where logits are infinite; NaN is the largest."""
    places = [min(place, vocab - 1) for place in (0, 3, 100, 254, 256, 1030, 2999, 3000)]
    values = logits(15, rows=len(places) + 4, vocab=vocab)
    for row, place in enumerate(places):
        values[row, place] = 50.0
        values[row, place + 300 :: 7] = 50.0
    values[-4], values[-3], values[-2, vocab // 2] = -torch.inf, torch.inf, torch.inf
    values[-1, vocab // 2 :] = math.nan
    tokens, finite = gumbel_max.likeliest(values)
    expected = values.max(dim=-1)
    assert tokens.tolist() == expected.indices.tolist()
    assert finite.tolist() == expected.values.isfinite().tolist()


def test_top_p_keeps_the_fewest_likeliest_tokens_that_have_its_mass() -> None:
    values = logits(13, rows=4, vocab=3001)
    for top_p in (0.1, 0.5, 0.9, 0.999):
        for kernels in {None, cpu_kernels()}:
            columns = prepared([row(top_p=top_p)] * 4, [None] * 4)[1].sampling.columns(torch.arange(4))
            kept = values >= keep_thresholds(values, values.amax(-1), columns, kernels).unsqueeze(1)
            probs = values.double().softmax(-1)
            mass = (probs * kept).sum(-1)
            least = torch.where(kept, probs, 1.0).amin(-1)
            assert (mass >= top_p - 1e-6).all()
            assert (mass - least < top_p + 1e-6).all()


def test_penalties_are_those_of_their_papers() -> None:
    values = torch.tensor([[1.0, 2.0, -1.0, 0.5]])
    history = torch.tensor([0, 1, 2, 1, 1], dtype=torch.int32)
    params = {"temperature": 0.0, "repetition_penalty": 2.0, "frequency_penalty": 0.25, "presence_penalty": 0.5}
    asked = row(position=5, prompt_len=2, logprobs=4, **params)
    assert needs_of(asked.params) & PENALIZES
    # repetition over all: 0.5, 1.0, -2.0; frequency and presence over the answer 2, 1, 1: token 1 -1.0, token 2 -0.75
    assert sample(values, [asked], [history]).tokens.tolist() == [0]
    assert values.tolist() == [[1.0, 2.0, -1.0, 0.5]], "the model's own logits must stay as they are"


def test_rows_that_ask_for_much_are_adjusted_as_each_alone() -> None:
    values = logits(8, rows=6, vocab=50)
    asked = [
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {},
        {"presence_penalty": 1.5, "logit_bias": ((3, -2.0), (7, 1.0))},
        {"min_tokens": 9, "stop_token_ids": (4, 5)},
        {"repetition_penalty": 0.5, "min_tokens": 9, "stop_token_ids": (6,), "logit_bias": ((6, 9.0),)},
        {"logit_bias": ((3, 5.0),), "allowed_token_ids": (3, 4), "bad_words_token_ids": ((4,),)},
    ]
    rows = [row(position=5 + i, prompt_len=3 + i, **params) for i, params in enumerate(asked)]
    tokens = torch.randint(50, (12,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    history = [tokens[: r.position] for r in rows]
    together = process_logits(values, *prepared(rows, history))
    for i in range(6):
        alone = process_logits(values[i : i + 1], *prepared(rows[i : i + 1], history[i : i + 1]))
        assert torch.equal(together[i : i + 1], alone)
    assert torch.equal(together[1], values[1])
    counts = torch.bincount(tokens[3:5], minlength=50)
    seen = torch.bincount(tokens[:5], minlength=50) > 0
    expected = torch.where(seen, torch.where(values[0] > 0, values[0] / 1.3, values[0] * 1.3), values[0]) - 0.4 * counts
    torch.testing.assert_close(together[0], expected)
    assert together[4, 6] == -torch.inf, "a ban is stronger than a bias"


def test_adjusting_and_logprobs_never_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the meta device have no values that could be waited for: code that asks for one fails."""
    meta = torch.device("meta")

    def send(values: list[float], _: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(meta)

    for module in (logits_processors, sampler, sampling_table, state_table):
        monkeypatch.setattr(module, "to_device", send)
    rows = [row(logprobs=3, **EVERYTHING), row(), row(**EVERYTHING)]
    values = torch.empty(3, VOCAB, device=meta)
    sampled, table = prepared(rows, [None] * 3, meta)
    assert process_logits(values, sampled, table).shape == (3, VOCAB)
    assert sampler._logprobs(values, torch.empty(3, dtype=torch.int64, device=meta), sampled, table) is not None
    with pytest.raises(RuntimeError):
        bool((values > 0).all())


EVERYTHING = {
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.4,
    "logit_bias": ((3, -2.0),),
    "min_tokens": 9,
    "stop_token_ids": (4, 5),
    "allowed_token_ids": (1, 2),
    "bad_words_token_ids": ((1,), (2, 1)),
}


def test_bias_and_min_tokens() -> None:
    values = torch.tensor([[1.0, 2.0, -1.0]])
    assert sample(values, [row(temperature=0.0, logit_bias=((2, 5.0),))], [None]).tokens.item() == 2
    stop = {"temperature": 0.0, "stop_token_ids": (1,), "min_tokens": 2}
    chosen = [sample(values, [row(position=p, prompt_len=5, **stop)], [None]).tokens.item() for p in (5, 6, 7)]
    assert chosen == [0, 0, 1]


def test_only_allowed_tokens_are_chosen() -> None:
    values = logits(3, rows=2, vocab=50)
    asked = {"temperature": 0.0, "allowed_token_ids": (7, 9), "logit_bias": ((3, 100.0), (7, 50.0))}
    assert sample(values, [row(**asked), row(temperature=0.0)], [None] * 2).tokens.tolist() == [7, values[1].argmax()]
    assert set(draw(values[:1], 500, allowed_token_ids=(7, 9, 11), temperature=9.0)) == {7, 9, 11}


def test_no_bad_word_is_completed() -> None:
    """The last token of a bad word is forbidden when its other tokens are the answer's last ones."""
    values = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    words = ((3,), (1, 2), (0, 1, 2), (2, 2, 1))
    for history, prompt, token in (
        ([0, 0, 0], 0, 2), ([0, 0, 1], 0, 1), ([2, 2, 1], 0, 1), ([0, 2, 2], 0, 2), ([0, 0, 1], 3, 2), ([1], 0, 1),
        ([], 0, 2),
    ):  # fmt: skip
        asked = row(position=len(history), prompt_len=prompt, temperature=0.0, bad_words_token_ids=words)
        known = torch.tensor(history, dtype=torch.int32)
        assert sample(values, [asked], [known]).tokens.tolist() == [token], history
    both = row(position=2, prompt_len=0, temperature=0.0, bad_words_token_ids=((2, 2, 3), (0, 3), (1, 2)))
    assert sample(values, [both], [torch.tensor([2, 2], dtype=torch.int32)]).tokens.tolist() == [2]


def test_logprobs_are_the_models_own_and_hold_the_chosen_token() -> None:
    values = logits(4, rows=2)
    rows = [row(temperature=0.0, logprobs=3), row(temperature=1.5, logprobs=0)]
    sampled = sample(values, rows, [None] * 2)
    expected = torch.log_softmax(values, -1)
    _, logprobs, _ = Readback(sampled).read()
    first, second = logprobs[0], logprobs[1]
    assert first.rank == 1
    assert [token for token, _ in first.top] == values[0].topk(3).indices.tolist()
    assert first.top[0] == (first.token_id, pytest.approx(first.logprob))
    assert second.top == ()
    assert second.logprob == pytest.approx(expected[1, second.token_id].item())
    assert second.rank == int((values[1] > values[1, second.token_id]).sum()) + 1


EXTREMES = [
    {"temperature": 1e-50},
    {"temperature": 1e-37},
    {"temperature": 1e4},
    {"repetition_penalty": 0.01},
    {"repetition_penalty": 100.0, "temperature": 2.0},
    {"presence_penalty": -100.0, "frequency_penalty": 100.0},
    {"top_p": 1e-6},
    {"min_p": 1.0},
    {"top_k": 1},
    {"top_k": 1 << 31},
    {"logit_bias": ((3, -100.0), (5, 100.0))},
    {"min_tokens": 1 << 31, "stop_token_ids": tuple(range(VOCAB - 1))},
]


@pytest.mark.parametrize("params", EXTREMES, ids="-".join)
def test_extreme_parameters_within_the_allowed_ranges_give_a_token(params: dict[str, float]) -> None:
    asked = row(**params)
    check_sampling(asked.params)
    history = torch.arange(5, dtype=torch.int32)
    values = logits(6, rows=2)
    sampled = sample(values, [asked, row(temperature=0.0)], [history, None])
    assert sampled.finite.tolist() == [True, True]
    assert 0 <= sampled.tokens[0].item() < VOCAB
    assert sampled.tokens[1] == values[1].argmax(), "its neighbour"
    if params.get("temperature", 1) < 1e-5:
        assert sampled.tokens[0] == values[0].argmax()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_only_the_row_with_broken_logits_is_broken(value: float) -> None:
    values = logits(5, rows=3)
    values[1, 17] = value
    for temperature in (0.0, 1.0):
        sampled = sample(values, [row(temperature=temperature)] * 3, [None] * 3)
        assert sampled.finite.tolist() == [True, False, True]
        assert set(Readback(sampled).read()[2]) == {1}
        alone = sample(values[:1], [row(temperature=temperature)], [None])
        assert sampled.tokens[0] == alone.tokens[0]


def test_a_mask_forbids_all_but_its_tokens_in_its_row_alone() -> None:
    values = logits(9, rows=3, vocab=70)
    asked = [row(temperature=0.0), row(temperature=0.0, logit_bias=((40, 1000.0),)), row(temperature=0.0)]
    sampled, table = prepared(asked, [None] * 3)
    allowed = [0, 31, 33, 69]
    for places in ({1: bits(allowed, 70)}, {0: bits([64], 70), 1: bits(allowed, 70)}):
        tokens = sampler.sample(values, replace(sampled, masks=masks_of(places)), table).tokens.tolist()
        assert tokens[1] == max(allowed, key=lambda token: float(values[1, token])), "stronger than any bias"
        assert tokens[0] == (64 if 0 in places else values[0].argmax())
        assert tokens[2] == values[2].argmax()
    asked, before = [row(temperature=0.0, logprobs=2)], values.clone()
    sampled, table = prepared(asked, [None])
    chosen = sampler.sample(values[1:2], replace(sampled, masks=masks_of({0: bits([0], 70)})), table)
    assert chosen.logprobs is not None and torch.equal(values, before), "log probabilities are the model's own"
    sampled, table = prepared(asked * 3, [None] * 3)
    with pytest.raises(ValueError, match="a mask for 70 tokens must have 3 words"):
        sampler.sample(values, replace(sampled, masks=masks_of({1: bits([3], 64)})), table)


def test_a_mask_without_a_token_that_the_request_allows_is_no_defect_of_the_model() -> None:
    values = logits(9, rows=4, vocab=70)
    values[2, 5] = math.nan
    allowing = row(temperature=0.0, allowed_token_ids=(1,))
    sampled, table = prepared([allowing, allowing, row(), row()], [None] * 4)
    masks = {0: bits([1, 2], 70), 1: bits([2, 3], 70), 2: bits([5], 70)}
    tokens, _, errors = Readback(sampler.sample(values, replace(sampled, masks=masks_of(masks)), table)).read()
    assert tokens[0] == 1
    assert {index: reason for index, (reason, _) in errors.items()} == {1: "invalid", 2: "error"}


@pytest.mark.skipif(cpu_kernels() is None, reason="the C kernels cannot be compiled here")
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 3001])
def test_pytorch_and_the_c_kernels_apply_the_same_masks(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For few rows and for so many that threads share them, without some rows, and with broken logits."""
    values = logits(14, rows=50, vocab=vocab)
    values[3, :7], values[5, ::2], values[7] = math.nan, math.inf, -torch.inf
    words = torch.randint(-(2**31), 2**31, (50, -(-vocab // 32)), generator=torch.Generator().manual_seed(1))
    words[::3], words[1::7] = -1, 0
    for rows in (range(0, 50, 4), range(48, 0, -1)):
        masks = Masks([*rows], words[[*rows]].int())
        by_kernels, by_torch = values.clone(), values.clone()
        logits_processors._apply_masks(by_kernels, masks)
        with monkeypatch.context() as patch:
            patch.setattr(logits_processors, "cpu_kernels", lambda: None)
            logits_processors._apply_masks(by_torch, masks)
        torch.testing.assert_close(by_kernels, by_torch, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(by_kernels[49], values[49])


def test_places_are_sampled_a_few_at_a_time_where_each_logit_takes_memory() -> None:
    """As the memory plan counts them: 70 rows of all kinds, in parts, are what they are together."""
    asked = {"temperature": 0.8, "top_p": 0.9, "logprobs": 3, "repetition_penalty": 1.2}
    values, count = logits(11, rows=70), 2 * sampler.MOST_TOGETHER + 6
    greedy, table = prepared([row(temperature=0.0)] * count, [None] * count)
    assert sampler.parts(greedy, table, values.device) == [slice(0, count)], "which takes no memory for its logits"
    masked = replace(greedy, masks=masks_of({40: bits([3], VOCAB)}))
    assert len(sampler.parts(masked, table, values.device)) == 3
    rows = [row(position=5 + place, seed=place, **asked) for place in range(count)]
    sampled, table = prepared(rows, [torch.arange(5 + place, dtype=torch.int32) for place in range(count)])
    sampled = replace(sampled, masks=masks_of({40: bits([3, 4], VOCAB)}))
    together = sampler.sample(values, sampled, table)
    parts = sampler.parts(sampled, table, values.device)
    assert [(part.start, part.stop) for part in parts] == [(0, 32), (32, 64), (64, 70)]
    with peak_memory() as peak:
        found = [sampler.sample(values[part], sampled.part(part), table) for part in parts]
    assert torch.equal(torch.cat([each.tokens for each in found]), together.tokens)
    assert int(together.tokens[40]) in (3, 4)
    assert together.logprobs is not None
    values_of = [each.logprobs.values for each in found if each.logprobs is not None]
    assert torch.equal(torch.cat(values_of), together.logprobs.values)
    assert peak.bytes <= footprint.sampler_bytes(VOCAB, sampler.MOST_TOGETHER)
