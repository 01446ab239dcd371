"""Renders a model's chat template: from the messages of a chat to the text of the prompt.

A template is a program in a model's files, so it is not trusted. It runs in Jinja's immutable sandbox, on plain data;
its length, the length of its output and the amount of its computation are bounded. The semantics are those of
`render_jinja_template` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from octavo_engine.text.template_sandbox import TemplateEnvironment, budget

MAX_TEMPLATE_CHARS = 1 << 17
"""The longest template. Jinja compiles about 60,000 characters a second; long templates have 30,000."""
MAX_OUTPUT_CHARS = 16 << 20

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
"""Names that a request's variables must not have. They must not have the names of special tokens either."""

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_FROM_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What Python raises for the code that Jinja makes of a template: 21 nested loops, a `break` outside of a loop or a
repeated argument is a SyntaxError, a number of 5,000 digits a ValueError, very deep nesting one of the others."""


class ChatTemplateError(ValueError):
    """Raised if a chat template cannot be used at all, or cannot render a request's messages and variables."""


class ChatTemplate:
    """A compiled chat template. `special_tokens` are given to it by name (`bos_token`, `eos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ChatTemplateError(f"the chat template has {len(source)} characters, more than {MAX_TEMPLATE_CHARS}")
        try:
            self._template = TemplateEnvironment().from_string(source)
        except (TemplateError, *_FROM_PYTHON) as error:
            raise ChatTemplateError(f"the chat template is broken: {error}") from None
        self.source = source
        self.special_tokens = dict(special_tokens)

    @property
    def knows_tools(self) -> bool:
        """True if the template reads the variable `tools`, and so shows tools to the model."""
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
        """Return the prompt's text for `messages` (`role` and `content` as plain text).

        `tools` are functions that the model may call, as OpenAI's API describes them.
        `variables` are further variables of the request, such as `enable_thinking`; they cannot replace the server's.
        ChatTemplateError, with the reason, if the template cannot render them.
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
    # If the tag has lost its last space, the template trims contents, and would have trimmed the message's end as well.
    return cut if text[position:].startswith(_TAG) else cut.rstrip()
