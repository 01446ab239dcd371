"""One answer as a list of parts: reasoning, text, and calls of tools, each of which begins, grows and ends in turn."""

from __future__ import annotations

import secrets
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.output_parsing.custom_input import CustomInput
from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event, Reasoning
from octavo_engine.output_parsing.formats import FORMATS

Kind = Literal["text", "reasoning", "call"]
_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 24


@dataclass(slots=True)
class Part:
    """A part of an answer."""

    index: int
    """Its place among the answer's parts."""
    kind: Kind
    number: int
    """Its place among the parts of its kind."""
    name: str = ""
    """The function that a call calls."""
    id: str = ""
    """The id of a call."""
    input: CustomInput | None = None
    """Reads the input of a custom tool's call; None for all other parts."""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The part's text so far; of a function's call its arguments, of a custom tool's call its input."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class PartBegun:
    """A part comes that has no text yet."""

    part: Part


@dataclass(slots=True)  # not frozen: making a frozen one takes four times as long, and most tokens make one
class PartGrown:
    """More of a part's text has come."""

    part: Part
    text: str


@dataclass(frozen=True, slots=True)
class PartEnded:
    """A part is complete, or the answer ended within it."""

    part: Part


PartEvent = PartBegun | PartGrown | PartEnded


class AnswerParts:
    """Reads one answer of a form: its text is given to `push` as it comes."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._parser = None if form.plain else form.parser()
        self._custom = {tool.name for tool in form.tools if tool.custom}
        self.parts: list[Part] = []
        self._counts: Counter[Kind] = Counter()

    @property
    def calls(self) -> Sequence[Part]:
        """The calls of tools so far."""
        return [part for part in self.parts if part.kind == "call"]

    def push(self, text: str, *, last: bool) -> list[PartEvent]:
        """Return the events of the next piece of text; `last` means that no more text comes."""
        if self._parser is None:
            found = self._grow("text", text) if text else []
        else:
            events = self._parser.push(text) + (self._parser.finish() if last else [])
            found = [each for event in events for each in self._take(event)]
        if last and self.parts:
            found.append(PartEnded(self.parts[-1]))
        return found

    def _take(self, event: Event) -> list[PartEvent]:
        match event:
            case Content(text):
                return self._grow("text", text)
            case Reasoning(text):
                return self._grow("reasoning", text)
            case CallStart(name):
                part = self._new("call", name, _new_call_id(self._form))
                part.input = CustomInput() if name in self._custom else None
                return self._begin(part)
            case CallArguments(text):
                decoder = self.parts[-1].input
                return self._grow("call", text if decoder is None else decoder.push(text))

    def _new(self, kind: Kind, name: str = "", call_id: str = "") -> Part:
        self._counts[kind] += 1
        return Part(len(self.parts), kind, self._counts[kind] - 1, name, call_id)

    def _begin(self, part: Part) -> list[PartEvent]:
        ended: list[PartEvent] = [PartEnded(self.parts[-1])] if self.parts else []
        self.parts.append(part)
        return [*ended, PartBegun(part)]

    def _grow(self, kind: Kind, text: str) -> list[PartEvent]:
        same = bool(self.parts) and self.parts[-1].kind == kind
        events = [] if same else self._begin(self._new(kind))
        if text:
            part = self.parts[-1]
            part.pieces.append(text)
            events.append(PartGrown(part, text))
        return events


def _new_call_id(form: AnswerForm) -> str:
    """Return an id of the length that the templates of the form's format accept."""
    format_ = FORMATS.get(form.format or "")
    if format_ is not None and format_.id_length != _ID_LENGTH:
        return _random(format_.id_length)
    return f"call_{_random(_ID_LENGTH)}"


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
