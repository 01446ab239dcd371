"""One answer's text, read while it is generated: reasoning, then content and calls of tools."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event, Reasoning
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.streamed_text import MORE, Steps, StreamedText, expect, pass_until, skip_spaces

_THINK, _THINK_END = "<think>", "</think>"


class AnswerParser:
    """Reads one answer. `push` its text as it comes, then `finish`; both give the events that are complete."""

    def __init__(
        self,
        format_: Format | None,
        tools: Mapping[str, Tool],
        *,
        reasons: bool = False,
        begun: bool = False,
        single: bool = False,
        demanded: bool = False,
    ) -> None:
        """Without a format everything but reasoning is content.

        `reasons`: whether the model marks reasoning by <think>. `begun`: whether the prompt has opened it already.
        `single`: whether calls after the first one are left out. `demanded`: whether a grammar makes the answer consist
        of calls; other text is then the beginning of a call that was cut off, and is left out too.
        """
        self._text = StreamedText()
        self._calls = 0
        self._single, self._demanded = single, demanded
        self._steps = self._read(format_, tools, reasons, begun)

    def _read(self, format_: Format | None, tools: Mapping[str, Tool], reasons: bool, begun: bool) -> Steps[Event]:
        text = self._text
        if reasons:
            yield from _reasoning(text, begun)
        if format_ is not None:
            yield from format_.parse(text, tools)
        while True:  # without a format, or behind its end
            if len(text):
                yield Content(text.take())
            if text.ended:
                return True
            yield MORE

    def push(self, text: str) -> list[Event]:
        """Read more of the answer's text; return the events that are complete."""
        self._text.append(text)
        return self._events()

    def finish(self) -> list[Event]:
        """End the answer; return its last events."""
        self._text.ended = True
        return self._events()

    def _events(self) -> list[Event]:
        found: list[Event] = []
        for event in self._steps:
            if event is MORE:
                break
            self._calls += isinstance(event, CallStart)
            if self._counts(event):
                found.append(_encodable(event))
        return found

    def _counts(self, event: Event) -> bool:
        """Return True if the event is part of the answer: not text around calls that were demanded, nor white space
        around others, nor a call too many."""
        if isinstance(event, Content):
            return bool(event.text) and not self._demanded and not (self._calls and event.text.isspace())
        return isinstance(event, Reasoning) or not self._single or self._calls == 1

    @property
    def called(self) -> bool:
        """True if the answer has called a tool."""
        return self._calls > 0


def _encodable(event: Event) -> Event:
    """Return a call's event with unpaired surrogates as the escapes by which JSON writes them: UTF-8 has none.

    A model that writes such an escape within a string that is decoded here would otherwise make the answer fail.
    """
    match event:
        case CallStart(name):
            return CallStart(_escaped(name))
        case CallArguments(text):
            return CallArguments(_escaped(text))
    return event


def _escaped(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _reasoning(text: StreamedText, begun: bool) -> Steps[Event]:
    """Yield the reasoning, if the answer begins with it."""
    if not begun:
        text.mark()
        yield from skip_spaces(text)
        if not (yield from expect(text, _THINK)):
            if before := text.read_since_mark():
                yield Content(before)
            return False
        text.read_since_mark()
    yield from skip_spaces(text)
    ended = yield from pass_until(text, Reasoning, _THINK_END)
    yield from skip_spaces(text)
    return ended
