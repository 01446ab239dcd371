"""The fields of OpenAI's and vLLM's APIs that ask for a form of the answer, and their translation to a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.bodies.body import StrictBody
from octavo_engine.server.openai.bodies.refused import NotYet
from octavo_engine.server.openai.structured_outputs.structural_tags import Form, Structure, Triggers, older_form
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.structured.grammar import (
    MAX_CHARACTERS,
    GrammarError,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from octavo_engine.structured.grammar_check import SlowGrammarError, check_grammar
from octavo_engine.structured.structural_tags import structural_tag_grammar
from octavo_engine.structured.vocabulary import outline

_MAX_DEPTH = 64
_MAX_CHOICES = 1024


def _schema(value: Any) -> dict[str, Any] | str | None:
    if value is None or (isinstance(value, str) and len(value) <= MAX_CHARACTERS):
        return value
    return _schema_object(value)


def _schema_object(value: Any) -> dict[str, Any]:
    """Check the nesting of a JSON schema and return it. Its size is checked when a grammar is made of it."""
    if not isinstance(value, dict):
        raise ValueError("must be a JSON schema: an object")
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
    if level:
        raise ValueError(f"is nested more than {_MAX_DEPTH} deep")
    return value


def _optional_schema_object(value: Any) -> dict[str, Any] | None:
    return None if value is None else _schema_object(value)


def _of_arguments(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    """Check the type in the JSON schema of a function's arguments, and return the schema."""
    kinds = (schema or {}).get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise ValueError("must be a JSON schema of type object, as arguments are an object")
    return schema


def _children(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


Grammar = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
Schema = Annotated[Any, AfterValidator(_schema)]
"""A JSON schema, as an object or as its JSON text."""
SchemaObject = Annotated[Any, AfterValidator(_schema_object)]
OptionalSchemaObject = Annotated[Any, AfterValidator(_optional_schema_object)]
ArgumentsSchema = Annotated[SchemaObject, AfterValidator(_of_arguments)]
OptionalArgumentsSchema = Annotated[OptionalSchemaObject, AfterValidator(_of_arguments)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=4096)]], Field(min_length=1, max_length=_MAX_CHOICES)
]


class NamedSchema(StrictBody):
    """The schema of a `response_format`, with its name."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: Annotated[SchemaObject, Field(alias="schema")]
    strict: bool | None = None
    """Has no effect: an answer always follows its schema."""
    description: Annotated[str, Field(max_length=MAX_CHARACTERS)] | None = None


class StructuralTag(StrictBody):
    """Tags in a text, in xgrammar's form (`format`) or in the older one (`structures` and `triggers`)."""

    type: Literal["structural_tag"] = "structural_tag"
    format: Form | None = None
    structures: Annotated[list[Structure], Field(min_length=1, max_length=128)] | None = None
    triggers: Triggers | None = None

    @model_validator(mode="after")
    def _one_form(self) -> StructuralTag:
        older = self.structures is not None and self.triggers is not None
        if (self.format is not None) == older or (self.structures is None) != (self.triggers is None):
            raise ValueError("a structural_tag has either a format, or structures and triggers")
        return self

    def grammar(self) -> str:
        """Return the grammar of the form; GrammarError if the form is not valid."""
        if self.format is not None:
            return structural_tag_grammar(self.format.model_dump())
        return structural_tag_grammar(older_form(self.structures or [], self.triggers or []))


def _read_tag(value: Any) -> Any:
    """Return a structural tag, parsed if it is given as JSON text, as in vLLM's API."""
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("must be a structural tag, or its JSON text") from None


TagText = Annotated[StructuralTag, BeforeValidator(_read_tag)]


class ResponseFormat(StrictBody):
    """OpenAI's field `response_format`: any text, any JSON object, or JSON under a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise PydanticCustomError("missing_member", "if type is json_schema", {"place": ("json_schema",)})
        if self.type != "json_schema" and self.json_schema is not None:
            raise ValueError(f"type {self.type} has no json_schema; set type to json_schema, or leave it out")
        return self


AnyFormat = Annotated[ResponseFormat | StructuralTag, Field(discriminator="type")]


class StructuredOutputs(StrictBody):
    """vLLM's field `structured_outputs`, which has all forms."""

    json_: Annotated[Schema, Field(alias="json")] = None
    regex: Grammar | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None
    json_object: bool | None = None
    structural_tag: TagText | None = None
    disable_any_whitespace: bool | None = None
    """If it is True, JSON has no white space between its tokens."""
    disable_fallback: bool | None = None
    """Has no effect, as there is no second implementation of grammars to fall back to."""
    disable_additional_properties: NotYet = None
    whitespace_pattern: NotYet = None

    @model_validator(mode="after")
    def _has_a_form(self) -> StructuredOutputs:
        forms = (self.json_, self.regex, self.choice, self.grammar, self.json_object, self.structural_tag)
        if all(each is None for each in forms):
            raise ValueError("names no form: give one of json, regex, choice, grammar, json_object and structural_tag")
        return self


class StructuredFields(BaseModel):
    """The fields of a request's body that ask for a form of the answer; a request may use one of them."""

    response_format: AnyFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema = None
    guided_regex: Grammar | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None
    guided_whitespace_pattern: NotYet = None
    structural_tag: NotYet = None


def grammar_of(body: StructuredFields, model: LoadedModel) -> str | None:
    """Return the checked grammar that the answer must follow, None for any text; APIError 400 names the field."""
    forms = list(_forms(body))
    if not forms:
        return None
    (param, make), *others = forms
    if others:
        names = ", ".join(name for name, _ in forms)
        raise APIError(400, f"{names}: only one of these may be given in a request", param=param)
    try:
        grammar = make()
        check_grammar(grammar, outline(model.tokenizer), model.check_time)
    except GrammarError as error:
        raise wrong_grammar(error, param) from None
    return grammar


def wrong_grammar(error: GrammarError, param: str) -> APIError:
    """Return the error 400 of a request whose field `param` has a grammar that cannot be followed."""
    code = "grammar_too_slow" if isinstance(error, SlowGrammarError) else "invalid_grammar"
    return APIError(400, f"{param}: {error}", param=param, code=code)


def schema_of_content(body: StructuredFields) -> dict[str, Any] | None:
    """Return the JSON schema that `response_format` asks for; None if it asks for none."""
    form = body.response_format
    if not isinstance(form, ResponseFormat) or form.type == "text":
        return None
    return {"type": "object"} if form.json_schema is None else form.json_schema.schema_


def _forms(body: StructuredFields) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield each field that asks for a form, with the function that makes its grammar."""
    form = body.response_format
    if isinstance(form, StructuralTag):
        yield "response_format", form.grammar
    elif form is not None and form.json_schema is not None:
        yield "response_format", partial(json_schema_grammar, form.json_schema.schema_)
    elif form is not None and form.type == "json_object":
        yield "response_format", json_object_grammar
    fields: list[tuple[str, Any, Callable[[Any], str]]] = [
        ("guided_json", body.guided_json, json_schema_grammar),
        ("guided_regex", body.guided_regex, regex_grammar),
        ("guided_choice", body.guided_choice, choice_grammar),
        ("guided_grammar", body.guided_grammar, lark_grammar),
    ]
    if (outputs := body.structured_outputs) is not None:
        compact = bool(outputs.disable_any_whitespace)
        fields += [
            ("structured_outputs.json", outputs.json_, partial(json_schema_grammar, compact=compact)),
            ("structured_outputs.regex", outputs.regex, regex_grammar),
            ("structured_outputs.choice", outputs.choice, choice_grammar),
            ("structured_outputs.grammar", outputs.grammar, lark_grammar),
            (
                "structured_outputs.json_object",
                outputs.json_object or None,
                lambda _: json_object_grammar(compact=compact),
            ),
            ("structured_outputs.structural_tag", outputs.structural_tag, StructuralTag.grammar),
        ]
    for param, value, make in fields:
        if value is not None:
            yield param, partial(make, value)
