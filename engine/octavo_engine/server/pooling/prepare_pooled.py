"""Prepares embeddings, scores and ranks, in a text worker: from the body to token ids of texts."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.engine.info import EmbeddingInfo
from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.server.errors import APIError
from octavo_engine.server.loaded_model import LoadedModel
from octavo_engine.server.openai.body import parse
from octavo_engine.server.openai.preparation import answer_length
from octavo_engine.server.openai.prompts import check_prompt, encode_text
from octavo_engine.server.pooling.protocol import EmbeddingBody, PooledBody, RerankBody, ScoreBody
from octavo_engine.server.prepared import PooledOptions, PreparedRequest, TextOptions

MAX_NUMBERS = 1 << 21
"""Numbers in all vectors of one answer."""


def embedding(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """What /v1/embeddings asks for; APIError 400."""
    body = parse(EmbeddingBody, raw)
    info = _check_model(model)
    dimensions = body.dimensions
    if dimensions is not None and dimensions > info.size:
        message = f"dimensions: {dimensions} is more than the {info.size} of this model's vectors"
        raise APIError(400, message, param="dimensions")
    if dimensions is not None and body.normalize is False:
        message = "normalize: vectors that are cut to dimensions have length 1; leave one of the two out"
        raise APIError(400, message, param="normalize")
    numbers = len(body.input) * (dimensions or info.size)
    if numbers > MAX_NUMBERS:
        message = (
            f"input: {len(body.input)} vectors have {numbers} numbers, more than {MAX_NUMBERS} in one answer; send the "
            f"inputs in {-(-numbers // MAX_NUMBERS)} requests"
        )
        raise APIError(400, message, param="input")
    normalize = dimensions is not None or (info.normalize if body.normalize is None else body.normalize)
    options = PooledOptions(dimensions=dimensions, normalize=normalize, base64=body.encoding_format == "base64")
    return _prepared(model, body, body.input, "input", options)


def score(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """What /v1/score asks for; APIError 400."""
    body = parse(ScoreBody, raw)
    _check_model(model)
    if (sides := body.sides()) is None:
        message = "text_1 and text_2 (or queries and documents): both are needed"
        raise APIError(400, message, param="text_1", code="missing_required_parameter")
    first, second = sides
    if len(first) not in (1, len(second)):
        message = f"text_1: {len(first)} texts cannot be paired with the {len(second)} of text_2; give one, or as many"
        raise APIError(400, message, param="text_1")
    return _prepared(model, body, [*first, *second], "text_1", PooledOptions(queries=len(first)))


def rerank(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """What /v1/rerank asks for; APIError 400."""
    body = parse(RerankBody, raw)
    _check_model(model)
    documents = () if body.return_documents is False else tuple(body.documents)
    options = PooledOptions(queries=1, documents=documents, top_n=body.top_n or None)
    return _prepared(model, body, [body.query, *body.documents], "documents", options)


def _check_model(model: LoadedModel) -> EmbeddingInfo:
    """APIError 400 if the model has no vectors, or makes them in a way that is not computed."""
    info = model.ready.embedding
    if info is None or info.pooling != "last":
        how = "none" if info is None else info.pooling
        message = f"this model makes its embeddings by {how}; only those of the last token are supported"
        raise APIError(400, message, param="model", code="unsupported_parameter")
    return info


def _prepared(
    model: LoadedModel, body: PooledBody, texts: Sequence[str] | Sequence[list[int]], param: str, options: PooledOptions
) -> PreparedRequest:
    prompts = tuple(tuple(_encode(model, body, text, param)) for text in texts)
    answer_length(0, 0, max(map(len, prompts)), model.ready, param)
    return PreparedRequest(
        prompts=prompts,
        echoes=("",) * len(prompts),
        n=1,
        sampling=SamplingParams(max_tokens=0),
        text=TextOptions(),
        form=AnswerForm(),
        pooled=options,
        model=body.model,
        stream=False,
        include_usage=False,
        timeout=body.timeout,
        priority=body.priority,
        cache_salt=body.cache_salt or "",
    )


def _encode(model: LoadedModel, body: PooledBody, text: str | list[int], param: str) -> list[int]:
    keep = body.truncate_prompt_tokens
    keep = model.ready.max_model_len if keep == -1 else keep
    if not isinstance(text, str):
        return check_prompt(text[:keep], model.ready, param)
    special = body.add_special_tokens is not False
    if keep is None:
        return check_prompt(encode_text(model, text, special, param), model.ready, param)
    short = text[: min(keep, model.ready.max_model_len) * model.tokenizer.longest_token]
    plain = encode_text(model, short, False, param)
    added = model.tokenizer.encode("", special)
    if len(added) >= keep:
        message = f"truncate_prompt_tokens: {keep} leaves no room beside the {len(added)} that the tokenizer adds"
        raise APIError(400, message, param="truncate_prompt_tokens")
    if len(plain) + len(added) <= keep and len(short) == len(text):
        return check_prompt(encode_text(model, text, special, param), model.ready, param)
    complete = encode_text(model, short, special, param)
    before = next((at for at in range(len(added) + 1) if complete[at : at + len(plain)] == plain), 0)
    kept = [*complete[:before], *plain[: keep - len(added)], *complete[before + len(plain) :]]
    return check_prompt(kept, model.ready, param)
