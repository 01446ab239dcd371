"""A model's chat template: messages in, the prompt's text out, with Hugging Face's semantics.

A template is part of a model's files, that is, a stranger's program. It runs in Jinja's immutable sandbox, on plain
data, with bounds on what goes in, what comes out, and how much it computes. Follows `render_jinja_template` of
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from octavo_engine.text.template_sandbox import TemplateEnvironment, budget

MAX_TEMPLATE_CHARS = 1 << 17
"""Jinja compiles about 60,000 characters a second; long templates have 30,000."""
MAX_OUTPUT_CHARS = 16 << 20

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Names that a request's own variables may not take, besides those of the special tokens."""

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplateError(ValueError):
    """The template refuses these messages, or there is something wrong with it."""


class ChatTemplate:
    """A compiled chat template. `special_tokens` are given to it by name (`bos_token`, `eos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ChatTemplateError(f"the chat template has {len(source)} characters, more than {MAX_TEMPLATE_CHARS}")
        try:
            self._template = TemplateEnvironment().from_string(source)
        except (TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template is broken: {error}") from None
        self.source = source
        self.special_tokens = dict(special_tokens)

    @property
    def knows_tools(self) -> bool:
        """True if the template passes tools to the model."""
        return "tools" in self.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of `messages` (`role` and `content` as plain text); ChatTemplateError says what it refuses.

        `tools` are functions that the model may call, as OpenAI's API describes them.
        `variables` are the request's own, such as `enable_thinking`; they cannot replace what the server gives.
        """
        given = dict(variables or {})
        if clash := sorted(given.keys() & (RESERVED | self.special_tokens.keys())):
            raise ChatTemplateError(f"chat_template_kwargs may not set {', '.join(clash)}")
        chat = [dict(message) for message in messages]
        if continue_final_message:
            chat[-1]["content"] += _TAG
        context = {
            **given,
            **self.special_tokens,
            "messages": chat,
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(context)
        return _cut_at_tag(text) if continue_final_message else text

    def _run(self, context: Mapping[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        try:
            with budget():
                for part in self._template.generate(context):
                    size += len(part)
                    if size > MAX_OUTPUT_CHARS:
                        raise ChatTemplateError(f"the chat template wrote more than {MAX_OUTPUT_CHARS} characters")
                    parts.append(part)
        except ChatTemplateError:
            raise
        except Exception as error:  # noqa: BLE001  (a template can raise anything; it concerns this request alone)
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from None
        return "".join(parts)


def _cut_at_tag(text: str) -> str:
    position = text.rfind(_TAG.strip())
    if position < 0:
        raise ChatTemplateError("the chat template leaves out the final message, so it cannot be continued")
    cut = text[:position]
    # A template that trims contents has taken the tag's space away, and would have taken the message's.
    return cut if text[position:].startswith(_TAG) else cut.rstrip()
