"""One declaration of each rule for both validators: pydantic here (`check`, `render`, `local`) and the API server.

A `Rule` holds its CEL expression and the same test in Python side by side, so that neither can be changed alone. It is
used in two places: in `Annotated[...]` on a field, or in the `rules` of a model.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

VALIDATIONS = "x-kubernetes-validations"


@dataclass(frozen=True)
class Rule:
    """One rule and its error message.

    Here the sentence ends with the values of the fields `shown`, or with the `hint` for a value. The API server would
    need a `messageExpression`, and refuses one that makes a string of a number, since it takes its cost to have no
    bound; it has no function that finds similar words.

    `holds` is None for what only the API server checks: transition rules (those that read `oldSelf`), as only it knows
    the old object, and what another rule checks here.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None
    shown: tuple[str, ...] = ()
    hint: Callable[[Any], str] | None = None

    def check(self, value: Any) -> Any:
        """Return `value` itself; PydanticCustomError with the sentence if the rule is broken."""
        if self.holds is not None and not self.holds(value):
            raise PydanticCustomError("rule", "{sentence}", {"sentence": self._sentence(value)})
        return value

    def as_validation(self) -> dict[str, str]:
        """Return the rule as the API server wants it."""
        return {"rule": self.cel, "message": self.message}

    def _sentence(self, value: Any) -> str:
        if self.hint is not None:
            return self.message + self.hint(value)
        if not self.shown:
            return self.message
        given = value.model_dump(by_alias=True)
        return f"{self.message} ({', '.join(f'{name}: {given[name]}' for name in self.shown)})"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = handler(schema)
        return {**inner, VALIDATIONS: [*inner.get(VALIDATIONS, []), self.as_validation()]}


@dataclass(frozen=True)
class Rules:
    """Several rules of one value, in `Annotated[...]`; the first that is broken says its sentence."""

    rules: tuple[Rule, ...]

    def check(self, value: Any) -> Any:
        """Return `value` itself; PydanticCustomError with the sentence of the first rule that is broken."""
        for rule in self.rules:
            rule.check(value)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = handler(schema)
        return {**inner, VALIDATIONS: [*inner.get(VALIDATIONS, []), *(rule.as_validation() for rule in self.rules)]}


def pattern(expression: str, message: str) -> Rule:
    """Return a rule that the whole string matches `expression` (RE2 and Python alike), with a sentence for people."""
    return Rule(
        cel=f"self.matches(r'^(?:{expression})$')",
        message=message,
        holds=lambda text: re.fullmatch(expression, text) is not None,
    )


def exactly_one_of(*names: str, message: str = "") -> Rule:
    """Return a rule that of the members of a union, by their names outside, one is set and no other."""
    present = ", ".join(f"has(self.{name})" for name in names)
    listed = f"{', '.join(names[:-1])} or {names[-1]}"
    return Rule(
        cel=f"[{present}].filter(x, x).size() == 1",
        message=message or f"exactly one of {listed} must be set",
        holds=lambda union: len(set(names) & set(union.model_dump(by_alias=True, exclude_none=True))) == 1,
    )


def all_keys(expression: str, message: str) -> Rule:
    """Return a rule that each key of a mapping as a whole matches `expression`."""
    return Rule(
        cel=f"self.all(key, key.matches(r'^(?:{expression})$'))",
        message=message,
        holds=lambda mapping: all(re.fullmatch(expression, key) for key in mapping),
    )


@dataclass(frozen=True)
class ListType:
    """A list whose items are identified by `key` (`map`) or by themselves (`set`, key None); duplicates are refused."""

    key: str | None = None

    def check(self, items: list[Any]) -> list[Any]:
        """Return `items` itself; PydanticCustomError names the first duplicate."""
        seen = set()
        for item in items:
            value = getattr(item, self.key) if self.key else item
            if value in seen:
                raise PydanticCustomError("duplicate", "{value} appears twice", {"value": repr(value)})
            seen.add(value)
        return items

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = handler(schema)
        if self.key is None:
            return {**inner, "x-kubernetes-list-type": "set"}
        return {**inner, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [to_camel(self.key)]}


@functools.cache  # once for a class, as each reconcile of an LLMService parses it again
def _names_without_null(model: type[BaseModel]) -> frozenset[str | None]:
    """Return the names outside of the fields that are not `nullable`."""
    return frozenset(field.alias for field in model.model_fields.values() if not _is_nullable(field))


def _is_nullable(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("nullable") is True


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


class SpecModel(BaseModel):
    """Base of everything in a spec: camelCase outside, strict types, unknown fields refused, rules obeyed."""

    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, frozen=True)
    rules: ClassVar[tuple[Rule, ...]] = ()

    def as_object(self) -> dict[str, Any]:
        """Return the object as Kubernetes writes it: camelCase, without fields that are not set."""
        return self.model_dump(by_alias=True, exclude_none=True)

    @model_validator(mode="before")
    @classmethod
    def _as_the_api_server_reads(cls, given: Any) -> Any:
        """Drop nulls of fields that are not `nullable`, and take 1e6, as Helm writes a million, for a whole number."""
        if not isinstance(given, dict):
            return given
        unset = _names_without_null(cls)
        kept = {name: value for name, value in given.items() if value is not None or name not in unset}
        return {name: int(value) if _is_whole(value) else value for name, value in kept.items()}

    @model_validator(mode="after")
    def _obey_rules(self) -> SpecModel:
        for rule in self.rules:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        inner = handler.resolve_ref_schema(handler(schema))
        if cls.rules:
            inner[VALIDATIONS] = [rule.as_validation() for rule in cls.rules]
        return inner


def section(model: type[SpecModel], description: str) -> Any:
    """Declare a nested object that is never absent: with `default: {}` the API server fills in its defaults."""
    return Field(default_factory=model, description=description, json_schema_extra={"default": {}})
