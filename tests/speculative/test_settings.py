"""--speculative-config: vLLM's keys and defaults, and an error that says what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo_engine.errors import ConfigurationError
from octavo_engine.speculative.settings import SpeculativeSettings, parse_speculative


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [({}, (5, 5)), ({"max": 3}, (3, 3)), ({"min": 2}, (2, 2)), ({"min": 1, "max": 4}, (1, 4)), ({"min": None}, (5, 5))],
)
def test_lengths_of_n_grams_have_vllms_defaults(lengths: dict[str, Any], expected: tuple[int, int]) -> None:
    values = {"method": "ngram", "num_speculative_tokens": 7, **{f"prompt_lookup_{k}": v for k, v in lengths.items()}}
    assert parse_speculative(json.dumps(values)) == SpeculativeSettings(7, *expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON; an example: {"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "method None is not supported; the methods are ngram"),
        ('{"method": "eagle3"}', "method 'eagle3' is not supported"),
        ('{"method": ["ngram"]}', "is not supported"),
        ('{"method": "ngram"}', "num_speculative_tokens is missing"),
        ('{"method": "ngram", "num_speculative_tokens": 4, "model": "x"}', "'model' is not supported; the keys are"),
        *(
            (json.dumps({"method": "ngram", "num_speculative_tokens": value}), "is not a whole number from 1 to 64")
            for value in (0, -1, 65, 1.5, "4", True, [4], 10**400)
        ),
        (
            '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 4, "prompt_lookup_max": 3}',
            "prompt_lookup_min 4 is above prompt_lookup_max 3",
        ),
    ],
)
def test_what_is_wrong_is_reported(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_speculative(text)
    assert str(error.value).startswith("--speculative-config: ") and said in str(error.value)
    assert len(str(error.value)) < 400
