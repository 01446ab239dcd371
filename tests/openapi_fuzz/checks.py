"""What schemathesis checks in each answer. It imports this file by SCHEMATHESIS_HOOKS, in its own environment."""

from __future__ import annotations

from typing import Any

import schemathesis  # type: ignore[import-not-found]


@schemathesis.check
def an_answer_or_an_error_of_the_api(_: Any, response: Any, case: Any) -> None:
    """No 500, and every error in the shape of OpenAI's or Anthropic's API. 503 is an answer: of a short timeout."""
    assert response.status_code != 500, "an internal error"
    if response.status_code >= 400 and case.method != "HEAD":
        assert response.json()["error"]["message"], "an error without a message"
