"""Makes the grammar of a `structural_tag`, as xgrammar defines it: a text with tags, whose content has a given form.

https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html describes what the parts mean; they are given here as plain
objects that have been checked (server/openai/structured_outputs/structural_tags.py).
A lazy lexeme of llguidance finds the end of a free text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo_engine.structured.grammar import (
    MAX_CHARACTERS,
    GrammarError,
    exact_schema,
    exact_schema_grammar,
    json_options,
    literal,
    regex_grammar,
    with_ascii_digits,
    written_grammar,
)

_TEXT = r"/(.|\n)*/"


def structural_tag_grammar(form: Mapping[str, Any], control_token: Callable[[str], int | None] = lambda _: None) -> str:
    """Return the grammar of a `format`, or of a form of tool calls (output_parsing/formats/forms.py).

    `control_token` returns the id of the control token with a text, if the model has one: a marker of calls may be
    one. Raises GrammarError, which names the part, if a part is not supported there.
    """
    rules = _Rules(control_token)
    start = rules.of(form, last=True)
    written = written_grammar("\n".join([f"start: {start}", *rules.lines]))
    if not rules.grammars:
        return written
    others = [{"name": name, "lark_grammar": text} for text, name in rules.grammars.items()]
    return json.dumps({"grammars": [{"lark_grammar": written}, *others]})


class _Rules:
    """Collects the rules of one grammar, in llguidance's variant of Lark's notation."""

    def __init__(self, control_token: Callable[[str], int | None]) -> None:
        self._control_token = control_token
        self.lines: list[str] = []
        self.grammars: dict[str, str] = {}
        """The names of complete grammars. As clients wrote them, they are not put into the text of this one."""
        self._characters = 0
        self._names: dict[str, str] = {}
        """The names of the rules of schemas and regular expressions, which several tags may share."""

    def of(self, form: Mapping[str, Any], *, last: bool) -> str:
        """Return a part as an expression. If it is the `last` part, any text may be endless."""
        kind = form["type"]
        if kind in ("any_text", "triggered_tags") and not last:
            raise GrammarError(f"structural_tag: {kind} is supported only at the end, where no other part follows it")
        if kind in ("sequence", "or"):
            return self._several(form, last)
        make: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
            "any_text": lambda part: self._text(_TEXT, part.get("unless", "")),
            "const_string": lambda part: literal(part["value"]),
            "json_schema": self._json,
            "regex": self._regex,
            "tag": self._tag,
            "tags_with_separator": self._separated,
            "triggered_tags": self._triggered,
            "marker": lambda part: self._marker(part["value"]),
            "optional": lambda part: f"({self.of(part['content'], last=False)})?",
            "list": self._list,
            "text_until": self._text_until,
            "lark": self._lark,
        }
        return make[kind](form)

    def _several(self, form: Mapping[str, Any], last: bool) -> str:
        *most, end = form["elements"]
        if form["type"] == "or":
            return self._named(" | ".join(self.of(each, last=last) for each in (*most, end)))
        return " ".join([*(self.of(each, last=False) for each in most), self.of(end, last=last)])

    def _json(self, form: Mapping[str, Any]) -> str:
        exact = exact_schema({} if form["json_schema"] is True else form["json_schema"])
        rule = f"%json {json.dumps({**exact.value, 'x-guidance': json_options(exact)})}"
        return self._once(rule, lambda: exact_schema_grammar(exact))

    def _marker(self, text: str) -> str:
        """Return a text as an expression: the control token of this text, if the model has one."""
        token = self._control_token(text)
        return literal(text) if token is None else f"<[{token}]>"

    def _list(self, form: Mapping[str, Any]) -> str:
        item = self._named(self.of(form["item"], last=False))
        separator = literal(form["separator"]) if form["separator"] else ""
        return f"{item} ({separator} {item}){{0,{form['most'] - 1}}}"

    def _text_until(self, form: Mapping[str, Any]) -> str:
        """Return the expression of a text and the marker behind it, which is the first one after the text's beginning.

        It is one lexeme with the marker, since llguidance does not look for another end of a lexeme that is too long.
        """
        least, most = form["least"], form["most"]
        text = _bounded_text(least, most) if least or most is not None else r"(.|\n)*"
        if self._control_token(form["end"]) is not None:
            return f"{self._text(f'/{text}/', form['unless'])} {self._marker(form['end'])}"
        end = _escaped(form["end"])
        lexeme = f"/{text}{end}/"
        if least or most is not None:
            lexeme += rf" & ~/(.|\n)*{end}(.|\n)+/"
        return self._named(self._text(lexeme, form["unless"]), "[lazy]")

    def _text(self, lexeme: str, unless: str) -> str:
        """Return the name of a new terminal, which unlike a rule may be an intersection.

        It has the texts of a lexeme of which a regular expression `unless`, if it is not empty, matches no beginning.
        """
        name = f"TEXT_{len(self.lines)}"
        self.lines.append(f"{name}: {lexeme}{_but(unless) if unless else ''}")
        return name

    def _regex(self, form: Mapping[str, Any]) -> str:
        pattern = _between_slashes(with_ascii_digits(form["pattern"]))
        return self._once(pattern, lambda: regex_grammar(form["pattern"]))

    def _lark(self, form: Mapping[str, Any]) -> str:
        text = form["grammar"]
        if text not in self.grammars:
            self.grammars[text] = f"grammar_{len(self.grammars)}"
            self._count(text)
        return f"@{self.grammars[text]}"

    def _once(self, expression: str, check: Callable[[], object]) -> str:
        """Return the name of an expression's rule. A new one is added after `check`, which may raise GrammarError."""
        if expression not in self._names:
            check()
            self._names[expression] = self._named(expression)
        return self._names[expression]

    def _named(self, expression: str, attributes: str = "") -> str:
        name = f"part_{len(self.lines)}"
        self.lines.append(f"{name}{attributes}: {expression}")
        self._count(self.lines[-1])
        return name

    def _count(self, text: str) -> None:
        self._characters += len(text)
        if self._characters > MAX_CHARACTERS:
            raise GrammarError(f"structural_tag: its grammar has more than {MAX_CHARACTERS} characters")

    def _tag(self, tag: Mapping[str, Any], skipped: int = 0) -> str:
        """Return a tag as an expression, without its first `skipped` characters, which a trigger has matched."""
        ends = [tag["end"]] if isinstance(tag["end"], str) else tag["end"]
        end = " | ".join(map(literal, ends))
        if tag["content"]["type"] != "any_text":
            content = self.of(tag["content"], last=False)
            return f"{literal(tag['begin'][skipped:])} {content} ({end})"
        if not all(ends):
            raise GrammarError("structural_tag: a tag with any_text needs an end that is not empty")
        return f"{literal(tag['begin'][skipped:])} {self._named(f'{_TEXT} ({end})', '[lazy]')}"

    def _separated(self, form: Mapping[str, Any]) -> str:
        tag = self._named(" | ".join(self._tag(each) for each in form["tags"]))
        more = "" if form["stop_after_first"] else f" ({literal(form['separator'])} {tag})*"
        return f"({tag}{more})" if form["at_least_one"] else f"({tag}{more})?"

    def _triggered(self, form: Mapping[str, Any]) -> str:
        _check_distinct(form["triggers"])
        tag = self._named(" | ".join(self._after(trigger, form["tags"]) for trigger in form["triggers"]))
        _check_triggers(form)
        first = self._named(" | ".join(self._tag(each) for each in form["tags"])) if form["at_least_one"] else ""
        if form["stop_after_first"]:
            return first or f"({tag} | {_TEXT})"
        return f"{first} {tag}* {_TEXT}"

    def _after(self, trigger: str, tags: Sequence[Mapping[str, Any]]) -> str:
        """Return the rule of any text up to the trigger and the rest of one of the tags that begin with it."""
        rests = [self._tag(each, len(trigger)) for each in tags if each["begin"].startswith(trigger)]
        if not rests:
            raise GrammarError(f"structural_tag: no tag begins with the trigger {trigger!r}")
        text = self._named(f"{_TEXT} {literal(trigger)}", "[lazy]")
        return self._named(f"{text} ({' | '.join(rests)})")


def _but(unless: str) -> str:
    """Return the end of a lexeme whose texts have no beginning that a regular expression matches."""
    return " & ~" + _between_slashes(rf"({unless})(.|\n)*")


def _bounded_text(least: int, most: int | None) -> str:
    """Return the regular expression of so many characters, none of them a line break at the ends, and a line break."""
    if most == 0:
        return r"\n?"
    inner = "" if most is None else max(0, most - 2)
    longer = rf"((.|\n){{{max(0, least - 2)},{inner}}}[^\n])" if most != 1 else ""
    text = rf"[^\n]{longer}{'?' if longer and least < 2 else ''}"
    return rf"{text}\n?" if least else rf"({text})?\n?"


def _escaped(text: str) -> str:
    """Return the regular expression, between slashes, that matches this text."""
    return re.escape(text).replace("/", r"\/")


def _check_distinct(triggers: Sequence[str]) -> None:
    for index, trigger in enumerate(triggers):
        if trigger in triggers[:index]:
            raise GrammarError(f"structural_tag: the trigger {trigger!r} is given twice")


def _check_triggers(form: Mapping[str, Any]) -> None:
    for tag in form["tags"]:
        if not any(tag["begin"].startswith(trigger) for trigger in form["triggers"]):
            raise GrammarError(f"structural_tag: the tag {tag['begin']!r} begins with none of the triggers")


def _between_slashes(pattern: str) -> str:
    """Return a regular expression as Lark writes it: between slashes, with escaped slashes and line breaks."""
    escapes = {"/": r"\/", "\n": r"\n"}
    escaped = re.sub(r"\\.|/|\n", lambda found: escapes.get(found[0], found[0]), pattern, flags=re.DOTALL)
    return f"/{escaped}/"
