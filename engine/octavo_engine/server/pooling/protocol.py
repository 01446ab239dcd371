"""The bodies of requests for embeddings, classes, scores and ranks.

Fields that OpenAI's API does not have carry the names of vLLM and Jina.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.bodies.body import Body
from octavo_engine.server.openai.bodies.field_types import (
    MAX_INPUTS,
    MAX_TOKENS,
    WHOLE,
    Inputs,
    Label,
    Name,
    Priority,
    PromptTruncation,
    Text,
    Timeout,
)
from octavo_engine.server.openai.bodies.refused import NotYet, OnlyEmbed, OnlyFalse, OnlyFloat, OnlyRight


def _text_of(value: Any) -> Any:
    """Return a document's text, also of an object with the field `text`, which Jina's and Cohere's clients send."""
    return value["text"] if isinstance(value, dict) and set(value) == {"text"} else value


Documents = Annotated[list[Annotated[Text, BeforeValidator(_text_of)]], Field(min_length=1, max_length=MAX_INPUTS)]


class PooledBody(Body):
    """The common fields of requests for embeddings, classes, scores and ranks."""

    model: Name | None = None
    truncate_prompt_tokens: PromptTruncation | None = None
    """How many tokens of a text are kept: its first ones, and those that the tokenizer adds; -1 for as many as fit."""
    add_special_tokens: bool | None = None
    priority: Priority | None = None
    timeout: Timeout | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:=/+-]+$")] | None = None
    user: Label | None = None
    """Has no effect."""
    truncation_side: OnlyRight = None
    input_type: NotYet = None
    prompt_name: NotYet = None
    mm_processor_kwargs: NotYet = None
    softmax: NotYet = None
    activation: NotYet = None
    chat_template: NotYet = None
    instruction: NotYet = None


class EmbeddingBody(PooledBody):
    """The body of POST /v1/embeddings and /pooling."""

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_TOKENS), WHOLE] | None = None
    """How many numbers of each vector are returned, its first ones; the result is scaled to length 1."""
    normalize: bool | None = None
    """Whether vectors are scaled to length 1; by default as the model's files say."""
    use_activation: NotYet = None
    messages: NotYet = None
    embed_dtype: NotYet = None
    endianness: NotYet = None
    task: OnlyEmbed = None
    late_chunking: OnlyFalse = None
    embedding_type: OnlyFloat = None
    """Jina's name of `encoding_format`, with further values."""


class Side(NamedTuple):
    """The texts on one side of a comparison, and the request's field that has them."""

    field: str
    texts: list[str]


class ScoreBody(PooledBody):
    """The body of POST /v1/score: one text is compared with one or several, or lists of equal length pair by pair."""

    text_1: Text | Documents | None = None
    text_2: Text | Documents | None = None
    queries: Text | Documents | None = None
    """Another name of text_1 in vLLM's API."""
    documents: Text | Documents | None = None
    """Another name of text_2 in vLLM's API."""
    data_1: Text | Documents | None = None
    """Another name of text_1 in vLLM's API."""
    data_2: Text | Documents | None = None
    """Another name of text_2 in vLLM's API; `items` is one, too."""
    items: Text | Documents | None = None
    use_activation: bool | None = None
    """False for a classifier's logits instead of probabilities."""

    def first(self) -> Side | None:
        """Return the first texts of the pairs, from whichever field has them; None if none has."""
        return self._side("text_1", "queries", "data_1")

    def second(self) -> Side | None:
        """Return the second texts of the pairs, from whichever field has them; None if none has."""
        return self._side("text_2", "documents", "items", "data_2")

    def _side(self, *names: str) -> Side | None:
        given = [name for name in names if getattr(self, name) is not None]
        if not given:
            return None
        if len(given) > 1:
            raise APIError(400, f"{' and '.join(given)}: give one of these, as they mean the same", param=given[1])
        [name] = given
        texts: str | list[str] = getattr(self, name)
        return Side(name, [texts] if isinstance(texts, str) else texts)


class RerankBody(PooledBody):
    """The body of POST /v1/rerank: documents are ordered by how well they answer the query."""

    query: Text
    documents: Documents
    top_n: Annotated[int, Field(ge=0, le=MAX_TOKENS), WHOLE] | None = None
    """How many of the best documents are returned; 0 and null mean all."""
    return_documents: bool | None = None
    max_tokens_per_doc: NotYet = None
    use_activation: bool | None = None


class ClassifyBody(PooledBody):
    """The body of POST /classify: texts whose classes are returned."""

    input: Inputs
    use_activation: bool | None = None
    messages: NotYet = None
