"""Log probabilities of an answer's tokens in the shape of chat completions and of the Responses API."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.server.openai.answers.objects import ContentLogprob, TopLogprob
from octavo_engine.text.logprobs import TokenName, clamp
from octavo_engine.text.tokenizer import Tokenizer


def content_logprobs(
    positions: Sequence[TokenLogprobs], tokenizer: Tokenizer, name: TokenName | None = None
) -> list[ContentLogprob]:
    """Return each token with its log probability and those of the likeliest tokens at its position.

    A token's name is its text unless `name` gives it another one.
    """
    return [_of_position(position, tokenizer, name or tokenizer.token_text) for position in positions]


def _of_position(position: TokenLogprobs, tokenizer: Tokenizer, name: TokenName) -> ContentLogprob:
    token_id = position.token_id
    return ContentLogprob(
        name(token_id),
        clamp(position.logprob),
        list(tokenizer.token_bytes(token_id)),
        [TopLogprob(name(top), clamp(logprob), list(tokenizer.token_bytes(top))) for top, logprob in position.top],
    )
