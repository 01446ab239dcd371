"""The form of an answer's text, which a request and the model's chat template decide before it is generated."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.output_parsing.answer_parser import AnswerParser
from octavo_engine.output_parsing.formats import FORCED, FORMATS
from octavo_engine.output_parsing.formats.tool import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """The form of a request's answers; all of them are parsed alike."""

    format: str | None = None
    """Name of the format of tool calls; None: everything but reasoning is content."""
    tools: tuple[Tool, ...] = ()
    reasons: bool = False
    """Whether reasoning may come first, marked by <think>."""
    begun: bool = False
    """Whether the prompt has begun the reasoning."""
    single: bool = False
    """Whether only the first call counts."""
    demanded: bool = False
    """Whether the answer must consist of calls, besides reasoning."""
    named: bool = False
    """Whether the request names the tool that must be called."""
    hides_reasoning: bool = False
    """Whether the answer leaves its reasoning out."""

    @property
    def plain(self) -> bool:
        """True if an answer's text is its content, so that there is nothing to parse."""
        return self.format is None and not self.reasons

    @property
    def special(self) -> bool:
        """True if control tokens must be part of the text, because the format of tool calls may be made of them, or the
        end of reasoning before demanded calls may be one."""
        return self.format is not None and (self.format != FORCED.name or self.reasons)

    def parser(self) -> AnswerParser:
        """Return a new parser for one answer."""
        format_ = None if self.format is None else FORCED if self.format == FORCED.name else FORMATS[self.format]
        return AnswerParser(
            format_,
            {tool.name: tool for tool in self.tools},
            reasons=self.reasons,
            begun=self.begun,
            single=self.single,
            demanded=self.demanded,
        )
