"""OpenAI's harmony (gpt-oss): messages in channels; analysis is reasoning, final is content, commentary may call tools.

https://cookbook.openai.com/articles/openai-harmony describes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from octavo_engine.output_parsing.events import CallStart, Content, Event, Reasoning
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.json_calls import json_arguments
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText, pass_until, read_until

_HEADER_END = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
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


HARMONY = Format(name="openai", parse=_parse, in_template=("<|channel|>", _HEADER_END), reasons=True)
