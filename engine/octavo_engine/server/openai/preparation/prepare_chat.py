"""Prepares requests of /v1/chat/completions in a text worker: from the body to token ids and checked parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.output_parsing.formats import FORMATS
from octavo_engine.output_parsing.formats.tool import ANYTHING, Tool
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.bodies.body import parse
from octavo_engine.server.openai.preparation.prepare_generation import (
    EndpointFields,
    answer_length,
    check_sequences,
    prepared_request,
)
from octavo_engine.server.openai.preparation.prompts import check_prompt, encode_prompt, render_chat, truncated_length
from octavo_engine.server.openai.protocol import ChatCompletionBody
from octavo_engine.server.openai.structured_outputs.fields import grammar_of, schema_of_content
from octavo_engine.server.openai.tools.call_grammars import CallGrammars
from octavo_engine.server.openai.tools.fields import Demand, NamedTool, ToolDefinition, demand
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import PreparedRequest


def prepare(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """Return the prepared request of a body; APIError 400 if it is not valid."""
    return prepare_body(model, parse(ChatCompletionBody, raw))


def prepare_body(model: LoadedModel, body: ChatCompletionBody) -> PreparedRequest:
    """Return the prepared request of a checked body; APIError 400 if it cannot be served."""
    logprobs = top_logprobs(body)
    check_sequences(body, 1, logprobs)
    grammar, demanded = grammar_of(body, model), demand(body)
    if grammar is not None and demanded is not None and body.response_format is None:
        # response_format is about content, and an answer with calls has none
        message = "tool_choice: demands a call, while another field demands a form of the text; leave one out"
        raise APIError(400, message, param="tool_choice")
    text = render_chat(model, body.messages, body)
    limit = body.max_completion_tokens or body.max_tokens
    keep = truncated_length(body, limit or 1, model.info)
    ids = encode_prompt(model, text, bool(body.add_special_tokens), "messages", keep, continued=True)
    prompt = check_prompt(ids, model.info, "messages")
    max_tokens = answer_length(limit, None, len(prompt), model.info, "messages")
    form, grammar = _form_and_grammar(CallGrammars(model, text), body, grammar, demanded)
    own = EndpointFields(prompts=[prompt], max_tokens=max_tokens, logprobs=logprobs, grammar=grammar, form=form)
    return prepared_request(body, model, own)


def top_logprobs(body: ChatCompletionBody) -> int | None:
    """Return how many likeliest tokens to report at each position; None for no log probabilities at all."""
    if body.top_logprobs and not body.logprobs:
        raise APIError(400, "top_logprobs: only allowed when logprobs is true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _form_and_grammar(
    calls: CallGrammars, body: ChatCompletionBody, grammar: str | None, demanded: Demand | None
) -> tuple[AnswerForm, str | None]:
    """Return the form and the grammar of the answers.

    `grammar` is that of the form of text that the request asks for; an answer in that form has no reasoning.
    """
    tools = tuple(tool.tool() for tool in body.offered)
    single = body.parallel_tool_calls is False
    form = AnswerForm(
        format=calls.format.name if calls.format is not None and (tools or calls.format.reasons) else None,
        tools=tools,
        reasons=calls.reasons,
        begun=calls.begun,
        single=single,
        named=isinstance(body.tool_choice, NamedTool),
        hides_reasoning=body.include_reasoning is False,
    )
    if demanded is not None:
        format_, grammar = calls.demanded(demanded.tools, several=demanded.several)
        return replace(form, format=format_.name, demanded=True), grammar
    if grammar is not None:
        schema = schema_of_content(body) if tools else None
        held = [tool.enforceable() for tool in body.offered]
        either = None if schema is None else calls.or_calls(schema, held, several=not single)
        return (AnswerForm(), grammar) if either is None else (form, either)
    if tools and calls.format is None:
        message = (
            "tools: how this model writes calls of tools is not known; serve it with --tool-call-parser and one of "
            f"{', '.join(FORMATS)}, or demand a call with tool_choice"
        )
        raise APIError(400, message, param="tools", code="unsupported_parameter")
    if any(tool.strict for tool in body.offered):
        return form, calls.strict(_held(body.offered), several=not single)
    return form, None


def _held(offered: Sequence[ToolDefinition]) -> Sequence[Tool]:
    """Return the tools, of which only those that are strict have their schemas; others take any object."""
    return [tool.tool() if tool.strict else Tool(tool.name, ANYTHING) for tool in offered]
