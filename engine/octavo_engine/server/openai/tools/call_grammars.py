"""Grammars of answers that must or may consist of tool calls, in the format that the model's chat template asks for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from octavo_engine.output_parsing.formats import FORCED, FORMATS, Format, format_of
from octavo_engine.output_parsing.formats.call_schema import arguments_schema
from octavo_engine.output_parsing.formats.forms import (
    SPACES,
    Form,
    NoFormError,
    either,
    json_form,
    marker,
    optional,
    sequence,
    text_until,
)
from octavo_engine.output_parsing.formats.hermes import HERMES
from octavo_engine.output_parsing.formats.tool import ANYTHING, Tool
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.structured_outputs.fields import wrong_grammar
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.structured.grammar import GrammarError
from octavo_engine.structured.grammar_check import CheckPausedError, SlowGrammarError, check_grammar
from octavo_engine.structured.structural_tags import structural_tag_grammar
from octavo_engine.structured.vocabulary import outline

THINK, THINK_END = "<think>", "</think>"
_REASONING = (text_until(THINK_END), SPACES)
"""The forms of reasoning that has begun, and of the white space behind it."""


class CallGrammars:
    """Makes the grammars for the answers to one prompt."""

    def __init__(self, model: LoadedModel, prompt: str) -> None:
        self._model = model
        template = model.tokenizer.chat_template
        self._template = "" if template is None else template.source
        self.format = format_of_model(model)
        """The format of the model's tool calls; None if it is not known."""
        self.reasons = THINK_END in self._template
        """Whether the model marks reasoning by <think>."""
        self.begun = prompt.rstrip().endswith(THINK)
        """Whether the prompt has begun the reasoning."""
        self._ended = prompt.rstrip().endswith(THINK_END)

    def demanded(self, tools: Sequence[Tool], *, several: bool) -> tuple[Format, str]:
        """Return the format and the grammar of an answer that consists of calls, perhaps after reasoning.

        It is a JSON list if the model's own format is not known, or cannot hold the arguments to the tools' schemas.
        APIError 400 if a tool's schema cannot be followed at all.
        """
        if self.format is not None:
            try:
                return self.format, self._grammar(self._calls(self.format, tools, several))
            except SlowGrammarError as error:  # in another form it would take as long
                raise wrong_grammar(error, "tools") from None
            except (NoFormError, GrammarError):
                pass
        try:
            return FORCED, self._grammar(self._calls(FORCED, tools, several))
        except GrammarError as error:
            raise self._wrong(error, tools) from None

    def or_calls(self, schema: dict[str, Any], tools: Sequence[Tool], *, several: bool) -> str | None:
        """Return the grammar of an answer that is JSON under a schema or consists of calls, as in OpenAI's API.

        None if the model's format does not allow it: answers are JSON then. APIError 400 if a tool's schema cannot be
        followed.
        """
        if self.format is None or self.format.reasons:
            return None
        try:
            return self._grammar(either([json_form(schema), self._calls(self.format, tools, several)]))
        except NoFormError:
            return None
        except GrammarError as error:
            raise self._wrong(error, tools) from None

    def strict(self, tools: Sequence[Tool], *, several: bool) -> str | None:
        """Return the grammar of an answer that is any text, and whose calls follow their schemas.

        A function whose arguments the model's format cannot hold to their schema takes any. None if the format is not
        known. APIError 400 if a tool's schema cannot be followed, or if a custom tool's input cannot be held to its
        grammar.
        """
        if self.format is None:
            return None
        held = [tool if self._holds(self.format, tool) else Tool(tool.name, ANYTHING) for tool in tools]
        if (free := next((tool.name for tool in tools if tool.custom and tool not in held), None)) is not None:
            message = (
                f"tools: this model's format of calls, {self.format.name}, cannot hold the input of {free} to its "
                "grammar; demand the call with tool_choice, or leave the tool's format out"
            )
            raise APIError(400, message, param="tools", code="unsupported_parameter")
        text_or_calls = functools.partial(self.format.text_or_calls, held, self._template, several=several)
        try:
            return self._checked(self._behind_reasoning(text_or_calls))
        except GrammarError as error:
            raise self._wrong(error, held) from None

    def _wrong(self, error: GrammarError, tools: Sequence[Tool]) -> APIError:
        """Return the error 400 of tools whose grammar has this error; it names the tool whose schema is the reason."""
        if isinstance(error, SlowGrammarError):
            return wrong_grammar(error, "tools")
        try:
            while len(tools) > 1:
                half = len(tools) // 2
                tools = tools[:half] if self._error_in(tools[:half]) is not None else tools[half:]
            if (own := self._error_in(tools)) is not None:
                error = GrammarError(f"the arguments of {tools[0].name}: {own}")
        except CheckPausedError:
            pass
        return wrong_grammar(error, "tools")

    def _error_in(self, tools: Sequence[Tool]) -> GrammarError | None:
        """Return the error in the schemas of tools themselves, without the format of calls; None if there is none."""
        forms = [json_form(arguments_schema(tool)) for tool in tools if not tool.lark]
        try:
            if forms:
                self._checked(either(forms))
        except GrammarError as error:
            return error
        return None

    def _holds(self, format_: Format, tool: Tool) -> bool:
        """Return True if a format can hold the arguments of a tool to their schema."""
        try:
            self._calls(format_, [tool], several=False)
        except NoFormError:
            return False
        return True

    def _behind_reasoning(self, text_or_calls: Callable[..., Form]) -> Form:
        """Return the form of an answer that may have calls, perhaps after reasoning."""
        if self.begun or not self._may_reason:
            return sequence(*self._reasoning(), text_or_calls())
        # If the reasoning mentions the marker of calls, no call begins there.
        return either([text_or_calls(unless=THINK), sequence(marker(THINK), *_REASONING, text_or_calls())])

    def _calls(self, format_: Format, tools: Sequence[Tool], several: bool) -> Form:
        return format_.calls(tools, self._template, several=several)

    def _grammar(self, form: Form) -> str:
        return self._checked(sequence(*self._reasoning(), form))

    def _checked(self, form: Form) -> str:
        grammar = structural_tag_grammar(form, self._model.tokenizer.control_token)
        check_grammar(grammar, outline(self._model.tokenizer), self._model.check_time)
        return grammar

    @property
    def _may_reason(self) -> bool:
        """True if the model reasons, and the prompt has not ended the reasoning."""
        return self.begun or (self.reasons and not self._ended)

    def _reasoning(self) -> Sequence[Form]:
        """Return the forms of the reasoning before the answer; none if there is none."""
        if self.begun:
            return _REASONING
        return (optional(sequence(marker(THINK), *_REASONING)),) if self._may_reason else ()


def format_of_model(model: LoadedModel) -> Format | None:
    """Return the format of the model's tool calls; None if it is not known.

    It is Hermes' if the chat template does not read tools, as the prompt then describes them in that format.
    """
    if model.tool_call_parser != "auto":
        return FORMATS[model.tool_call_parser]
    template = model.tokenizer.chat_template
    if template is None or not template.knows_tools:
        return HERMES
    return format_of(template.source)
