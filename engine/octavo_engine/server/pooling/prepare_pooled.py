"""Prepares requests for embeddings, classes, scores and ranks in a text worker: from the body to token ids."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from octavo_engine.engine.info import COMPUTED_POOLINGS, ClassifierInfo, EmbeddingInfo
from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.bodies.body import parse
from octavo_engine.server.openai.preparation.prepare_generation import answer_length
from octavo_engine.server.openai.preparation.prompts import characters_of, check_prompt, check_text, encode_prompt
from octavo_engine.server.pooling.protocol import ClassifyBody, EmbeddingBody, PooledBody, RerankBody, ScoreBody, Side
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import PooledOptions, PreparedRequest, TextOptions
from octavo_engine.text.tokenizer import TextPair

MAX_NUMBERS = 1 << 21
"""The most numbers (of vectors, or probabilities of classes) in one answer."""
_NUMBER_BYTES, _ENTRY_BYTES = 24, 64
"""The most bytes of a number in JSON, such as -1.2345678901234567e-05 and a comma, and of what is around an input's."""


def embedding(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """Return the prepared request of a body of /v1/embeddings; APIError 400 if it is not valid."""
    body = parse(EmbeddingBody, raw)
    info = _vectors(model)
    if "" in body.input:  # as in OpenAI's API, also if the tokenizer adds tokens
        raise APIError(400, "input: a text is empty", param="input")
    dimensions = body.dimensions
    if dimensions is not None and dimensions > info.size:
        message = f"dimensions: {dimensions} is more than the {info.size} of this model's vectors"
        raise APIError(400, message, param="dimensions")
    if dimensions is not None and body.normalize is False:
        message = "normalize: vectors that are cut to dimensions have length 1; leave one of the two out"
        raise APIError(400, message, param="normalize")
    _check_numbers(len(body.input), dimensions or info.size, "vectors")
    normalize = dimensions is not None or (info.normalize if body.normalize is None else body.normalize)
    options = PooledOptions(
        dimensions=dimensions,
        normalize=normalize,
        base64=body.encoding_format == "base64",
        json_bytes=_json_bytes(len(body.input), dimensions or info.size),
    )
    return _request_of_input(model, body, body.input, options)


def _json_bytes(inputs: int, per_input: int) -> int:
    """Return the most bytes of an answer in JSON with `per_input` numbers for each input."""
    return inputs * (_ENTRY_BYTES + per_input * _NUMBER_BYTES)


def _check_numbers(inputs: int, per_input: int, results: str) -> None:
    """Raise APIError 400 if an answer would be too large: `results`, of `per_input` numbers for each input."""
    numbers = inputs * per_input
    if numbers > MAX_NUMBERS:
        message = (
            f"input: {inputs} {results} have {numbers} numbers, more than {MAX_NUMBERS} in one answer; send the "
            f"inputs in {-(-inputs // max(1, MAX_NUMBERS // per_input))} requests"
        )
        raise APIError(400, message, param="input")


def classify(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """Return the prepared request of a body of /classify; APIError 400 if it is not valid."""
    body = parse(ClassifyBody, raw)
    info = model.info.classifier
    if info is None:
        message = "this model has no classes: it is not a ...ForSequenceClassification"
        raise APIError(400, message, param="model", code="unsupported_parameter")
    _check_numbers(len(body.input), len(info.labels), "lists of probabilities")
    options = PooledOptions(
        activation=_activation(info, body.use_activation),
        labels=info.labels,
        json_bytes=_json_bytes(len(body.input), len(info.labels)),
    )
    return _request_of_input(model, body, body.input, options)


def score(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """Return the prepared request of a body of /v1/score; APIError 400 if it is not valid."""
    body = parse(ScoreBody, raw)
    first, second = body.first(), body.second()
    if first is None or second is None:
        missing, other = ("text_1", "queries") if first is None else ("text_2", "documents")
        code = "missing_required_parameter"
        raise APIError(400, f"{missing} (or {other}) is required", param=missing, code=code)
    num_first, num_second = len(first.texts), len(second.texts)
    if num_first not in (1, num_second):
        message = f"{num_first} texts cannot be paired with the {num_second} of {second.field}; give one, or as many"
        raise APIError(400, f"{first.field}: {message}", param=first.field)
    return _compared(model, body, first, second, PooledOptions())


def rerank(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """Return the prepared request of a body of /v1/rerank; APIError 400 if it is not valid."""
    body = parse(RerankBody, raw)
    documents = () if body.return_documents is False else tuple(body.documents)
    options = PooledOptions(documents=documents, top_n=body.top_n or None)
    return _compared(model, body, Side("query", [body.query]), Side("documents", body.documents), options)


def _compared(
    model: LoadedModel, body: ScoreBody | RerankBody, first: Side, second: Side, options: PooledOptions
) -> PreparedRequest:
    """Return a request that compares texts: as pairs if the model is a classifier, else by their embeddings."""
    info = model.info.classifier
    if info is None:
        reason = _vectors(model).why_no_ranks
        if reason:
            raise APIError(400, f"model: {reason}", param="model", code="unsupported_parameter")
        if body.use_activation is False:
            message = "use_activation: acts on models that classify, and this one gives embeddings"
            raise APIError(400, message, param="use_activation", code="unsupported_parameter")
        prompts = [_encode(model, body, text, side.field) for side in (first, second) for text in side.texts]
        options = structs.replace(options, queries=len(first.texts))
        return _request_of_pairs(body, _unpaired(prompts), options)
    if len(info.labels) != 1:
        message = f"this model has {len(info.labels)} classes, and only a model with one scores pairs: use /classify"
        raise APIError(400, message, param="model", code="unsupported_parameter")
    activation = _activation(info, body.use_activation)
    firsts = first.texts * (len(second.texts) // len(first.texts))
    pairs = [
        _encode_pair(model, body, one, other, (first.field, second.field))
        for one, other in zip(firsts, second.texts, strict=True)
    ]
    return _request_of_pairs(body, pairs, structs.replace(options, activation=activation))


def _activation(info: ClassifierInfo, use: bool | None) -> str:
    return "identity" if use is False else info.activation


def _vectors(model: LoadedModel) -> EmbeddingInfo:
    """Return how the model makes embeddings; APIError 400 if it makes none, or in a way that is not supported."""
    info = model.info.embedding
    if info is None:
        message = "this model gives classes, not embeddings: use /classify, or /v1/score and /v1/rerank if it has one"
        raise APIError(400, message, param="model", code="unsupported_parameter")
    if info.pooling not in COMPUTED_POOLINGS:
        supported = ", ".join(COMPUTED_POOLINGS)
        message = f"this model makes its embeddings by {info.pooling}, which is not supported; supported: {supported}"
        raise APIError(400, message, param="model", code="unsupported_parameter")
    return info


def _encode_pair(model: LoadedModel, body: PooledBody, first: str, second: str, fields: tuple[str, str]) -> TextPair:
    """Return two texts, from the fields `fields`, as one prompt. The second is cut if the body limits the length."""
    if body.add_special_tokens is False:
        message = "add_special_tokens: false would remove the tokens between the two texts of a pair; leave it out"
        raise APIError(400, message, param="add_special_tokens", code="unsupported_parameter")
    longest = model.info.max_model_len
    keep = longest if body.truncate_prompt_tokens == -1 else body.truncate_prompt_tokens
    check_text(model, first, fields[0])
    if keep is not None:
        second = second[: characters_of(model, keep)]
    check_text(model, second, fields[1])
    try:
        pair = model.tokenizer.encode_pair(first, second, keep)
    except ValueError as error:
        message = f"truncate_prompt_tokens: {keep} leaves no room: {error}"
        raise APIError(400, message, param="truncate_prompt_tokens") from None
    _check_length(model, pair.ids, fields[1])
    return pair


def _request_of_input(
    model: LoadedModel, body: PooledBody, texts: Sequence[str] | Sequence[list[int]], options: PooledOptions
) -> PreparedRequest:
    prompts = [_encode(model, body, text, "input") for text in texts]
    return _request_of_pairs(body, _unpaired(prompts), options)


def _unpaired(prompts: Sequence[list[int]]) -> list[TextPair]:
    """Return prompts that are single texts as pairs without a second text."""
    return [TextPair(ids, 0) for ids in prompts]


def _request_of_pairs(body: PooledBody, pairs: Sequence[TextPair], options: PooledOptions) -> PreparedRequest:
    prompts = tuple(tuple(pair.ids) for pair in pairs)
    return PreparedRequest(
        prompts=prompts,
        echoes=("",) * len(prompts),
        n=1,
        sampling=SamplingParams(max_tokens=0, temperature=0.0),
        text=TextOptions(),
        form=AnswerForm(),
        pooled=options,
        second_texts=tuple(pair.second for pair in pairs),
        model=body.model,
        stream=False,
        include_usage=False,
        continuous_usage=False,
        timeout=body.timeout,
        priority=body.priority,
        cache_salt=body.cache_salt or "",
    )


def _encode(model: LoadedModel, body: PooledBody, text: str | list[int], param: str) -> list[int]:
    keep = body.truncate_prompt_tokens
    keep = model.info.max_model_len if keep == -1 else keep
    if not isinstance(text, str):
        return _check_length(model, text[:keep], param)
    special = body.add_special_tokens is not False
    if keep is None:
        return _check_length(model, encode_prompt(model, text, special, param), param)
    short = text[: characters_of(model, keep)]
    check_text(model, short, param)
    try:
        return _check_length(model, model.tokenizer.encode_beginning(short, keep, special), param)
    except ValueError as error:
        message = f"truncate_prompt_tokens: {keep} leaves no room {error}"
        raise APIError(400, message, param="truncate_prompt_tokens") from None


def _check_length(model: LoadedModel, prompt: list[int], param: str) -> list[int]:
    """Return the prompt; APIError 400 if it is too long, before further ones are tokenized, or has a wrong token."""
    answer_length(0, 0, len(prompt), model.info, param)
    return check_prompt(prompt, model.info, param)
