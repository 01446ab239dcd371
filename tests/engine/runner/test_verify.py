"""The verification of drafts, and the parts of a step's result."""

from __future__ import annotations

import pytest

from octavo_engine.core.request import FinishReason
from octavo_engine.core.step import RowError, StepResult
from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.runner.sampling.verify import accepted, verify_drafts


@pytest.mark.parametrize(
    ("sampled", "drafts", "count"),
    [
        ([7], [], 1),
        ([7, 8, 9], [7, 8], 3),
        ([7, 8, 9], [7, 5], 2),
        ([7, 8, 9], [5, 8], 1),
    ],
)
def test_drafts_are_accepted_up_to_the_first_that_differs(sampled: list[int], drafts: list[int], count: int) -> None:
    assert accepted(sampled, drafts) == count


def test_places_become_rows_with_their_log_probabilities() -> None:
    logprobs = {place: (TokenLogprobs(token, -0.5, 1, ()),) for place, token in enumerate([1, 2, 3, 4, 5, 6])}
    places = StepResult(3, [1, 2, 3, 4, 5, 6], logprobs=logprobs, seconds=0.5)
    result = verify_drafts(places, {1: (2, 9), 2: (5,)})
    assert (result.step, result.seconds) == (3, 0.5)
    assert result.token_ids == [1, 2, 5]
    assert result.more_token_ids == {1: (3,), 2: (6,)}
    assert {index: [each.token_id for each in row] for index, row in result.logprobs.items()} == {
        0: [1],
        1: [2, 3],
        2: [5, 6],
    }


def failed(text: str) -> RowError:
    return FinishReason.ERROR, text


def test_an_error_is_a_rows_only_at_its_first_place() -> None:
    places = StepResult(1, [1, 2, 3, 4, 5, 6, 7], errors={1: failed("a"), 4: failed("b")})
    result = verify_drafts(places, {0: (1, 2), 1: (4,)})
    assert result.token_ids == [1, 4, 6, 7]
    assert result.more_token_ids == {}, "what comes before the place that failed, and nothing behind it"
    assert result.errors == {}
    assert verify_drafts(StepResult(1, [1, 2], errors={0: failed("c")}), {0: (1,)}).errors == {0: failed("c")}
