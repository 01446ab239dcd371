"""The documentation for clients names every field of a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_engine.server.anthropic.protocol import MessagesBody
from octavo_engine.server.openai.bodies.body import Body
from octavo_engine.server.openai.protocol import ChatCompletionBody, CompletionBody, Message
from octavo_engine.server.openai.responses.protocol import ResponsesBody

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "openai-api.md"


@pytest.mark.parametrize("body", [ChatCompletionBody, CompletionBody, Message, MessagesBody, ResponsesBody])
def test_every_field_is_on_the_page(body: type[Body]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in body.model_fields if name not in {"role", "content"} and f"`{name}`" not in page] == []
