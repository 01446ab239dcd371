"""Turns a client's prompt into token ids with the chat template and the tokenizer, in a text worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo_engine.engine.info import EngineInfo
from octavo_engine.output_parsing.tool_prompt import with_tools
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.protocol import GenerationBody, Message, TemplateOptions
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.text.chat_template import ChatTemplateError

MAX_CHARACTERS = 1 << 17
"""The most characters of a text whose number of tokens is not known before it is tokenized, unless the context is long.
To tokenize them takes at most 80 MiB, with four bytes for each character."""
_CHARACTERS_PER_TOKEN = 16
"""Characters for each token of the context, by which the limit is higher if the context is long. A token of usual text
has a third as many."""
_SPARE_TOKENS = 1024
"""Tokens that the beginning of a text may have beyond the context: where it was cut, the text may have fewer."""


def check_prompt(prompt: list[int], info: EngineInfo, param: str) -> list[int]:
    """Return the prompt; APIError 400 if it is empty or has an id beyond the width of the logits."""
    if not prompt:
        raise APIError(400, f"{param}: the prompt is empty", param=param)
    if max(prompt) >= info.vocab_size:
        raise APIError(
            400, f"{param}: token {max(prompt)} is outside the model's vocabulary of {info.vocab_size}", param=param
        )
    return prompt


def truncated_length(body: GenerationBody, max_tokens: int, info: EngineInfo) -> int | None:
    """Return how many tokens of a prompt are kept, beside an answer of `max_tokens`; None if all are."""
    if body.truncate_prompt_tokens == -1:
        return max(1, info.max_model_len - max_tokens)
    return body.truncate_prompt_tokens


def encode_text(
    model: LoadedModel,
    text: str,
    add_special_tokens: bool,
    param: str,
    keep: int | None = None,
    *,
    continued: bool = False,
) -> list[int]:
    """Return the token ids of a text: all of them, or the last `keep`.

    A text that cannot fit, whatever its tokens are, is refused, or cut, before it is tokenized. `continued` is as in
    `Tokenizer.encode`.
    """
    length = len(text)
    if keep is not None and keep <= model.info.max_model_len:
        text = text[-(characters_of(model, keep) or _most_characters(model)) :]
    check_text(model, text, param)
    ids = model.tokenizer.encode(text, add_special_tokens, continued=continued)
    if keep is None:
        return ids
    if len(ids) < keep and len(text) < length:  # the part that was cut off may have tokens that would have to be kept
        raise _too_long(model, length, param)
    return ids[-keep:]


def encode_prompt(
    model: LoadedModel,
    text: str,
    add_special_tokens: bool,
    param: str,
    keep: int | None = None,
    *,
    continued: bool = False,
) -> list[int]:
    """Return the token ids of a text as `encode_text` does, but refuse one whose beginning alone is too long.

    A text of digits may have so many tokens that a text worker has no memory for all of them. The first characters, two
    for each token of the context, are tokenized first, if there are more.
    """
    longest = model.info.max_model_len
    begin = 2 * (longest + _SPARE_TOKENS)
    if keep is None and len(text) > begin:
        check_text(model, text, param)
        first = len(model.tokenizer.encode(text[:begin], add_special_tokens))
        if first > longest + _SPARE_TOKENS:
            raise beyond_context(longest, f", and the first {begin} characters alone have {first}", param)
    return encode_text(model, text, add_special_tokens, param, keep, continued=continued)


def characters_of(model: LoadedModel, keep: int) -> int | None:
    """Return the most characters that `keep` tokens can stand for.

    None if there is no such limit, or if `keep` tokens are more than the context has.
    """
    per_token = model.tokenizer.most_characters
    return None if per_token is None or keep > model.info.max_model_len else keep * per_token


def check_text(model: LoadedModel, text: str, param: str) -> None:
    """Raise APIError 400 for a text that is too long for the context or for the tokenizer, or is not valid Unicode."""
    limit = characters_of(model, model.info.max_model_len)
    if len(text) > (_most_characters(model) if limit is None else limit):
        raise _too_long(model, len(text), param)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise APIError(400, f"{param}: contains an unpaired surrogate", param=param) from None


def _most_characters(model: LoadedModel) -> int:
    """Return the most characters of a text whose number of tokens is not known before it is tokenized."""
    return max(MAX_CHARACTERS, model.info.max_model_len * _CHARACTERS_PER_TOKEN)


def _too_long(model: LoadedModel, length: int, param: str) -> APIError:
    longest = model.info.max_model_len
    reason = f", into which a text of {length} characters cannot fit"
    if model.tokenizer.most_characters is None:
        limit = _most_characters(model)
        reason = (
            f", and a text of {length} characters is too long: with this model's tokenizer at most {limit} are read"
        )
    return beyond_context(longest, reason, param)


def beyond_context(longest: int, reason: str, param: str) -> APIError:
    """Return the error of a request for more than the context's `longest` tokens; `reason` ends its first sentence.

    It begins as OpenAI's does, since LiteLLM, and frameworks that use it, know it by these words and not by its code.
    """
    message = f"this model's maximum context length is {longest} tokens{reason}"
    return APIError(400, message, param=param, code="context_length_exceeded")


def render_chat(model: LoadedModel, chat: Sequence[Message], options: TemplateOptions) -> str:
    """Return the prompt of a chat; APIError 400 if the template refuses it."""
    template = model.tokenizer.chat_template
    if template is None:
        raise APIError(
            400, "this model has no chat template; use /v1/completions", param="messages", code="no_chat_template"
        )
    continues = bool(options.continue_final_message)
    generates = not continues if options.add_generation_prompt is None else options.add_generation_prompt
    if continues and generates:
        message = "continue_final_message and add_generation_prompt exclude each other"
        raise APIError(400, message, param="continue_final_message")
    messages, tools = [_for_template(turn) for turn in chat], [tool.described() for tool in options.offered]
    if not template.knows_tools:
        messages, tools = with_tools(messages, tools), []
    try:
        return template.render(
            messages,
            add_generation_prompt=generates,
            continue_final_message=continues,
            tools=tools,
            variables={**_effort(options), **(options.chat_template_kwargs or {})},
        )
    except ChatTemplateError as error:
        raise APIError(400, str(error)[:1000], param="messages", code="chat_template_error") from None


def _effort(options: TemplateOptions) -> dict[str, Any]:
    """Return the template's variables for reasoning_effort: the effort, and whether to think at all, as in vLLM."""
    effort = options.reasoning_effort
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _for_template(turn: Message) -> dict[str, Any]:
    """Return a message in the form that chat templates expect."""
    optional = {
        "name": turn.name,
        "reasoning_content": turn.reasoning_content or turn.reasoning,
        "tool_call_id": turn.tool_call_id,
        "tool_calls": [call.for_template() for call in turn.tool_calls or ()] or None,
    }
    present = {name: value for name, value in optional.items() if value is not None}
    return {
        "role": "system" if turn.role == "developer" else turn.role,
        "content": turn.content or turn.refusal or "",
        **present,
    }
