"""The events of a parsed answer: text for people, reasoning before it, and tool calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """More of the text for people."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The model calls another tool. Its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments' JSON of the newest call."""

    text: str


Event = Content | Reasoning | CallStart | CallArguments
