"""Bodies of requests for embeddings, scores and ranks; beyond OpenAI's fields with the names of vLLM and Jina."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from octavo_engine.server.openai.fields import (
    MAX_INPUTS,
    MAX_TOKENS,
    Inputs,
    Label,
    Name,
    Priority,
    PromptTruncation,
    Text,
    Timeout,
)
from octavo_engine.server.openai.protocol import Body
from octavo_engine.server.openai.refused import NotYet, OnlyFalse


def _text_of(value: Any) -> Any:
    """A document that is an object with its text, as Jina's and Cohere's clients send it, as that text."""
    return value["text"] if isinstance(value, dict) and set(value) == {"text"} else value


Documents = Annotated[list[Annotated[Text, BeforeValidator(_text_of)]], Field(min_length=1, max_length=MAX_INPUTS)]


class PooledBody(Body):
    """The common fields of requests for embeddings, classes, scores and ranks."""

    model: Name | None = None
    truncate_prompt_tokens: PromptTruncation | None = None
    """Keep so many tokens of a text, the first ones and those that the tokenizer adds; -1 keeps what fits."""
    add_special_tokens: bool | None = None
    priority: Priority | None = None
    timeout: Timeout | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:=/+-]+$")] | None = None
    user: Label | None = None
    """Has no effect."""
    mm_processor_kwargs: NotYet = None
    softmax: NotYet = None
    activation: NotYet = None
    chat_template: NotYet = None
    instruction: NotYet = None


class EmbeddingBody(PooledBody):
    """POST /v1/embeddings and /pooling."""

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    """The first so many numbers, brought to length 1."""
    normalize: bool | None = None
    """Whether vectors have length 1; the model's own files say so where this does not."""
    use_activation: NotYet = None
    messages: NotYet = None
    embed_dtype: NotYet = None
    endianness: NotYet = None
    task: NotYet = None
    late_chunking: OnlyFalse = None


class Side(NamedTuple):
    """Texts that are compared with others, and the request's field that has them."""

    field: str
    texts: list[str]


class ScoreBody(PooledBody):
    """POST /v1/score: one text against one or several, or as many against as many, pair by pair."""

    text_1: Text | Documents | None = None
    text_2: Text | Documents | None = None
    queries: Text | Documents | None = None
    """vLLM's other name of text_1."""
    documents: Text | Documents | None = None
    """vLLM's other name of text_2."""
    data_1: Text | Documents | None = None
    data_2: Text | Documents | None = None
    items: Text | Documents | None = None
    """Its further names of text_1 and, both of these, of text_2."""
    use_activation: bool | None = None
    """False: the logits themselves, of a model that classifies."""

    def first(self) -> Side | None:
        """The texts that are compared with the others, under whichever name they came; None if there are none."""
        return self._side("text_1", "queries", "data_1")

    def second(self) -> Side | None:
        """The others."""
        return self._side("text_2", "documents", "items", "data_2")

    def _side(self, *names: str) -> Side | None:
        name = next((name for name in names if getattr(self, name) is not None), None)
        if name is None:
            return None
        given: str | list[str] = getattr(self, name)
        return Side(name, [given] if isinstance(given, str) else given)


class RerankBody(PooledBody):
    """POST /v1/rerank: the documents by how well they answer the query."""

    query: Text
    documents: Documents
    top_n: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    """0 and null mean all."""
    return_documents: bool | None = None
    max_tokens_per_doc: NotYet = None
    use_activation: bool | None = None


class ClassifyBody(PooledBody):
    """POST /classify: the classes of texts."""

    input: Inputs
    use_activation: bool | None = None
    messages: NotYet = None
