"""Prepares requests of /v1/chat/completions in a text worker: from the body to token ids and checked parameters."""

from __future__ import annotations

from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.output_parsing.formats import FORCED, FORMATS, Format, format_of
from octavo_engine.output_parsing.formats.hermes import HERMES
from octavo_engine.server.errors import APIError
from octavo_engine.server.loaded_model import LoadedModel
from octavo_engine.server.openai.body import parse
from octavo_engine.server.openai.preparation import answer_length, check_sequences, prepared_request
from octavo_engine.server.openai.prompts import check_prompt, encode_text, render_chat, truncated_length
from octavo_engine.server.openai.protocol import ChatCompletionBody
from octavo_engine.server.openai.structured_outputs import ResponseFormat, grammar_of, or_calls_grammar
from octavo_engine.server.openai.tools import NamedTool, demanded_grammar, tools_by_name
from octavo_engine.server.prepared import PreparedRequest

_THINK, _THINK_END = "<think>", "</think>"


def prepare(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """Return the prepared request of a body; APIError 400 if it is not valid."""
    return prepare_body(model, parse(ChatCompletionBody, raw))


def prepare_body(model: LoadedModel, body: ChatCompletionBody) -> PreparedRequest:
    """Return the prepared request of a checked body; APIError 400 if it cannot be served."""
    logprobs = top_logprobs(body)
    check_sequences(body, 1, logprobs)
    grammar, demanded = grammar_of(body), demanded_grammar(body)
    if grammar is not None and demanded is not None:
        if body.response_format is None:  # that field alone is about content, and an answer with calls has none
            message = "tool_choice: demands a call, while another field demands a form of the text; leave one out"
            raise APIError(400, message, param="tool_choice")
        grammar = None
    tags = _tags_of_calls(model, body) if grammar is not None and demanded is None else None
    if tags is not None:
        tools = list(tools_by_name(body.offered).values())
        grammar = or_calls_grammar(body, tools, tags, several=body.parallel_tool_calls is not False)
    text = render_chat(model, body.messages, body)
    asked = body.max_completion_tokens or body.max_tokens
    keep = truncated_length(body, asked or 1, model.ready)
    ids = encode_text(model, text, bool(body.add_special_tokens), "messages", keep)
    prompt = check_prompt(ids, model.ready, "messages")
    max_tokens = answer_length(asked, None, len(prompt), model.ready, "messages")
    form = _form(model, body, text, guided=grammar is not None and tags is None, demanded=demanded is not None)
    return prepared_request(body, model, [prompt], max_tokens, logprobs, grammar=grammar or demanded, form=form)


def top_logprobs(body: ChatCompletionBody) -> int | None:
    """Return how many likeliest tokens to report at each position; None for no log probabilities at all."""
    if body.top_logprobs and not body.logprobs:
        raise APIError(400, "top_logprobs: only allowed when logprobs is true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _form(model: LoadedModel, body: ChatCompletionBody, prompt: str, *, guided: bool, demanded: bool) -> AnswerForm:
    """Return the form of the answers to this prompt. An answer under a grammar begins with it, without reasoning."""
    tools = tuple(tools_by_name(body.offered).values())
    if demanded:
        return AnswerForm(format=FORCED.name, tools=tools, named=isinstance(body.tool_choice, NamedTool))
    if guided:
        return AnswerForm()
    format_ = _format(model)
    used = format_ is not None and (format_.reasons or bool(tools))
    if tools and format_ is None:
        message = (
            "tools: how this model writes calls of tools is not known; serve it with --tool-call-parser and one of "
            f"{', '.join(FORMATS)}, or demand a call with tool_choice"
        )
        raise APIError(400, message, param="tools", code="unsupported_parameter")
    template = model.tokenizer.chat_template
    return AnswerForm(
        format=format_.name if format_ is not None and used else None,
        tools=tools,
        reasons=template is not None and _THINK_END in template.source,
        begun=prompt.rstrip().endswith(_THINK),
        single=body.parallel_tool_calls is False,
        hides_reasoning=body.include_reasoning is False,
    )


def _tags_of_calls(model: LoadedModel, body: ChatCompletionBody) -> tuple[str, str] | None:
    """Return the texts around tool calls if an answer may be calls instead of what `response_format` asks for."""
    format_ = _format(model)
    asked = isinstance(body.response_format, ResponseFormat)
    return format_.tags if body.offered and asked and format_ is not None else None


def _format(model: LoadedModel) -> Format | None:
    """Return the format of the model's tool calls; None if it is not known.

    It is Hermes' if the chat template does not read tools, as the prompt then describes them in that format.
    """
    if model.tool_call_parser != "auto":
        return FORMATS[model.tool_call_parser]
    template = model.tokenizer.chat_template
    if template is None or not template.knows_tools:
        return HERMES
    return format_of(template.source)
