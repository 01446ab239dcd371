"""OpenAI's harmony (gpt-oss): messages in channels; analysis is reasoning, final is content, commentary may call tools.

https://cookbook.openai.com/articles/openai-harmony describes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from octavo_engine.output_parsing.events import CallStart, Content, Event, Reasoning
from octavo_engine.output_parsing.formats.call_schema import arguments_schema
from octavo_engine.output_parsing.formats.forms import (
    Form,
    any_text,
    either,
    json_form,
    listed,
    marker,
    optional,
    pattern,
    sequence,
    text_until,
    words,
)
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.json_calls import json_arguments
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText, pass_until, read_until

_CHANNEL, _CONSTRAIN, _HEADER_END = "<|channel|>", "<|constrain|>", "<|message|>"
_END, _START = "<|end|>", "<|start|>"
_ENDS = (_END, "<|call|>", "<|return|>", _START)
_SPACE = words(" ")
_IN_CHANNEL = sequence(marker(_CHANNEL), words("commentary "))
_RECIPIENT = re.compile(r"to=functions\.([A-Za-z0-9_.-]{1,256})")


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:  # noqa: ARG001
    while True:
        if (header := (yield from read_until(text, _HEADER_END))) is None:
            return False
        if (called := _RECIPIENT.search(header)) is not None:
            yield CallStart(called[1])
            yield from json_arguments(text)
            if (yield from read_until(text, *_ENDS)) is None:
                return True
            continue
        make: Callable[[str], Event] = Reasoning if "analysis" in header else Content
        if not (yield from pass_until(text, make, *_ENDS)):
            return True


def _calls(tools: Sequence[Tool], template: str, *, several: bool) -> Form:  # noqa: ARG001
    """Return the form of one call, perhaps after reasoning: an answer ends with its first call."""
    analysis = sequence(
        marker(_CHANNEL), words("analysis"), marker(_HEADER_END), text_until(_END), marker(_START), words("assistant")
    )
    return sequence(
        optional(analysis), marker(_CHANNEL), words("commentary to=functions."), either([*map(_call, tools)])
    )


def _call(tool: Tool, behind_name: Form = _SPACE) -> Form:
    kind = sequence(words(tool.name), behind_name, optional(marker(_CONSTRAIN)), words("json"))
    return sequence(kind, marker(_HEADER_END), json_form(arguments_schema(tool)))


def _text_or_calls(tools: Sequence[Tool], *, several: bool, unless: str) -> Form:  # noqa: ARG001
    """Return the form of messages with the usual headers; the last of them may be a call."""
    kind = optional(sequence(pattern(" ?"), optional(marker(_CONSTRAIN)), words("json")))
    header = sequence(marker(_CHANNEL), pattern("analysis|commentary|final"), kind, marker(_HEADER_END))
    before = sequence(header, text_until(_END), marker(_START), words("assistant"))
    by_role = sequence(words(" to=functions."), either([_call(tool, behind_name=_IN_CHANNEL) for tool in tools]))
    by_channel = sequence(marker(_CHANNEL), words("commentary to=functions."), either([*map(_call, tools)]))
    return sequence(optional(listed(before, "")), either([sequence(header, any_text()), by_channel, by_role]))


HARMONY = Format(
    name="openai",
    parse=_parse,
    calls=_calls,
    unmarked=_text_or_calls,
    in_template=(_CHANNEL, _HEADER_END),
    reasons=True,
)
