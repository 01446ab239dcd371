"""Checks that a loaded engine supports a request: its ranges, its length, and the parts of the engine that it needs."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.core.request import Request
from octavo_engine.engine.info import COMPUTED_POOLINGS, EngineInfo
from octavo_engine.errors import NotAdmissibleError
from octavo_engine.request_checks import check_length, check_sampling, check_tokens


def check_supported(
    request: Request, info: EngineInfo, *, adapters: bool, guided: bool, checked: Sequence[int] = ()
) -> None:
    """Raise NotAdmissibleError if the engine cannot run the request.

    `adapters` and `guided` say whether the engine serves adapters, and whether it has guided decoding. The tokens of a
    prompt that is the object `checked` are not looked at again.
    """
    tokens, sampling = request.prompt_token_ids, request.sampling
    check_length(len(tokens), sampling.max_tokens, info.max_model_len)
    check_sampling(sampling)
    check_tokens(() if tokens is checked else tokens, sampling, info.vocab_size)
    embedding = info.embedding
    if request.pooled and embedding is not None and embedding.pooling not in COMPUTED_POOLINGS:
        raise NotAdmissibleError(
            f"this model makes its embeddings by {embedding.pooling}; supported: {', '.join(COMPUTED_POOLINGS)}"
        )
    if not (info.generates or (request.pooled and not sampling.max_tokens)):
        raise NotAdmissibleError("this model does not generate text: ask for embeddings, scores or classes")
    if request.adapter and not adapters:
        raise NotAdmissibleError("this engine serves no adapters: start it with --enable-lora")
    if sampling.grammar is not None and not guided:
        raise NotAdmissibleError("guided decoding needs llguidance, which is not installed: leave out the grammar")
