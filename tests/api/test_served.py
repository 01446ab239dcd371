"""What the tests of the API wait with."""

from __future__ import annotations

import pytest

from tests.api import served


def test_a_condition_that_never_holds_is_named_with_what_was_there_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "PATIENCE", 0.01)
    given = [1]
    with pytest.raises(AssertionError, match=r"after 0.01 s still not: .*lambda: len\(given\) == 2.*; there is \[1\]"):
        served.wait_until(lambda: len(given) == 2, lambda: f"there is {given}")
    with pytest.raises(AssertionError, match=r"still not: <built-in method keys of dict object"):
        served.wait_until({}.keys)
