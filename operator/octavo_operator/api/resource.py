"""A whole LLMService object, and the reading of one with errors that a person understands."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from octavo_operator.api.fields import ShortName
from octavo_operator.api.llmservice import LLMServiceSpec
from octavo_operator.api.names import API_VERSION, KIND
from octavo_operator.api.schema import Rule, SpecModel

_NAME = "[a-z]([-a-z0-9]*[a-z0-9])?"

NAME_RULE = Rule(
    f"self.size() <= 40 && self.matches('^{_NAME}$')",
    "must have at most 40 characters: lower case letters, digits and '-', beginning with a letter (the names of its "
    "pods and Service derive from it)",
    lambda name: len(name) <= 40 and re.fullmatch(_NAME, name) is not None,
)
_NAME_RULE_OF_THE_OBJECT = Rule(
    NAME_RULE.cel.replace("self", "self.metadata.name"), f"the name of an LLMService {NAME_RULE.message}", None
)
"""The same for the API server, which takes no rule within `metadata`."""

_SERVED_NAME = "(has(self.spec.model.name) ? self.spec.model.name : self.metadata.name)"

ADAPTER_NAMES_RULE = Rule(
    f"!has(self.spec.adapters) || !self.spec.adapters.exists(adapter, adapter.name == {_SERVED_NAME} || "
    "(has(self.spec.model.aliases) && adapter.name in self.spec.model.aliases))",
    "an adapter must not have the model's name or one of its aliases: requests choose between them by name (model.name "
    "is by default the name of the LLMService)",
    lambda service: (
        not {adapter.name for adapter in service.spec.adapters} & {service.served_name, *service.spec.model.aliases}
    ),
)


class Metadata(BaseModel):
    """An object's metadata: what Octavo reads is typed, the rest is Kubernetes' own and only known by name."""

    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel, frozen=True)
    name: Annotated[str, NAME_RULE]
    namespace: ShortName | None = None
    uid: str | None = None
    generation: int = 1
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    generate_name: Any = None
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: Any = None
    finalizers: Any = None
    managed_fields: Any = None
    owner_references: Any = None
    resource_version: Any = None
    self_link: Any = None


class LLMService(SpecModel):
    """A large language model served on Kubernetes by Octavo: what is asked for (spec) and what is (status)."""

    rules = (_NAME_RULE_OF_THE_OBJECT, ADAPTER_NAMES_RULE)
    api_version: Literal["octavo.dev/v1alpha1"]
    kind: Literal["LLMService"]
    metadata: Metadata
    spec: LLMServiceSpec
    status: dict[str, Any] | None = Field(None)

    @property
    def name(self) -> str:
        """Its name, which is also that of its children."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Its namespace; `default` where a file names none."""
        return self.metadata.namespace or "default"

    @property
    def served_name(self) -> str:
        """The model's name in the OpenAI API."""
        return self.spec.model.name or self.metadata.name


@dataclass(frozen=True)
class FieldError:
    """One thing wrong with an LLMService: where, and what in a sentence."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidLLMServiceError(ValueError):
    """An object is no valid LLMService; `problems` says all that is wrong with it."""

    def __init__(self, problems: list[FieldError]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def parse(manifest: Mapping[str, Any]) -> LLMService:
    """Return the LLMService that `manifest` describes; InvalidLLMServiceError lists every problem with its path."""
    try:
        return LLMService.model_validate(dict(manifest))
    except ValidationError as error:
        raise InvalidLLMServiceError(list(_problems(error))) from None


@dataclass(frozen=True)
class Reading:
    """An LLMService as far as this version knows it. `unknown`: the paths of its fields that were left out."""

    service: LLMService
    unknown: tuple[str, ...] = ()


def parse_stored(manifest: Mapping[str, Any]) -> Reading:
    """Parse an object that the API server holds; unlike `parse`, unknown fields are left out and reported.

    While an upgrade is under way, or after a rollback, the CRD is newer than the operator, and the API server fills the
    defaults of new fields into every object. A misspelt field cannot be among them: it was refused or pruned.

    An adapter whose repository has a tag, as an older CRD let it in, is kept as it is (`AdapterRepository.problem`): it
    is no reason to leave the model alone.
    """
    try:
        return Reading(LLMService.model_validate(dict(manifest)))
    except ValidationError as error:
        details = error.errors(include_url=False)
    unknown = [detail["loc"] for detail in details if detail["type"] == _UNKNOWN]
    paths = tuple(_path(location) for location in unknown)
    tagged = {detail["loc"]: detail for detail in details if _is_adapter_repository(detail)}
    known = _without(manifest, unknown)
    for location in tagged:
        _holder(known, location)[location[-1]] = _STAND_IN
    try:
        service = parse(known)
    except InvalidLLMServiceError as error:  # perhaps because a required field was unknown and left out
        more = [FieldError(path, _SENTENCES[_UNKNOWN]) for path in paths]
        more += [FieldError(_path(each), _sentence_of(detail)) for each, detail in tagged.items()]
        raise InvalidLLMServiceError([*error.problems, *more]) from None
    given = {int(location[2]): detail["input"] for location, detail in tagged.items()}
    return Reading(_with_repositories(service, given) if given else service, paths)


_ADAPTERS, _REPOSITORY = ("spec", "adapters"), ("source", "huggingFace", "repository")
_STAND_IN = "an/adapter"


def _is_adapter_repository(detail: ErrorDetails) -> bool:
    """Return True if one of pydantic's errors is about the text of an adapter's repository."""
    location = detail["loc"]
    return (location[:2], location[3:]) == (_ADAPTERS, _REPOSITORY) and isinstance(detail["input"], str)


def _with_repositories(service: LLMService, given: Mapping[int, str]) -> LLMService:
    """Return the LLMService with the repositories `given` for adapters, by their place in the list, unchecked."""
    adapters = list(service.spec.adapters)
    for place, repository in given.items():
        source = adapters[place].source
        if source.hugging_face:
            hub = source.hugging_face.model_copy(update={"repository": repository})
            changed = source.model_copy(update={"hugging_face": hub})
            adapters[place] = adapters[place].model_copy(update={"source": changed})
    return service.model_copy(update={"spec": service.spec.model_copy(update={"adapters": adapters})})


def _without(manifest: Mapping[str, Any], locations: list[tuple[int | str, ...]]) -> dict[str, Any]:
    known = copy.deepcopy(dict(manifest))
    for location in locations:
        del _holder(known, location)[location[-1]]
    return known


def _holder(manifest: dict[str, Any], location: tuple[int | str, ...]) -> Any:
    """Return the mapping or list that has what is at `location`."""
    holder: Any = manifest
    for step in location[:-1]:
        holder = holder[step]
    return holder


def _problems(error: ValidationError) -> Iterator[FieldError]:
    """Yield the problems, misspelt fields first: a field that is required is often there under a wrong name."""
    for detail in sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != _UNKNOWN):
        yield FieldError(_path(detail["loc"]), _sentence_of(detail))


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


_SUBJECT = re.compile("^(Input|Value|String|List|Dictionary) should")
"""The beginning of pydantic's messages; ours follow the field's path and value."""
_UNKNOWN = "extra_forbidden"
_SENTENCES = {
    "missing": "is required",
    _UNKNOWN: "is not a field of an LLMService",
    "string_type": "must be a string: put it in quotes",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
}


def _known_at(location: Sequence[int | str]) -> list[str]:
    """Return the names of the fields that the mapping at `location` may have."""
    schema = LLMService.model_json_schema()
    nodes = list(_choices(schema, schema))
    for part in location:
        inner = [node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part) for node in nodes]
        nodes = [choice for node in inner if node for choice in _choices(schema, node)]
    return [name for node in nodes for name in node.get("properties", ())]


def _choices(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the nodes of a JSON schema that `node` stands for: itself, and what it refers to."""
    yield node
    for choice in node.get("anyOf", ()):
        yield from _choices(schema, choice)
    if "$ref" in node:
        yield from _choices(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])


def _sentence_of(detail: ErrorDetails) -> str:
    """Return what one of pydantic's errors says, as the end of a sentence."""
    kind, message, value, location = detail["type"], detail["msg"], detail["input"], detail["loc"]
    if kind in ("rule", "duplicate"):
        return message if isinstance(value, dict | list) else f"{value!r} {message}"
    if kind == "literal_error" and location in (("apiVersion",), ("kind",)):
        return f"{value!r} is not {API_VERSION if location == ('apiVersion',) else KIND}"
    if kind == _UNKNOWN:
        close = difflib.get_close_matches(str(location[-1]), _known_at(location[:-1]), 1)
        return _SENTENCES[kind] + (f", did you mean {close[0]}?" if close else "")
    if kind == "missing":
        return _SENTENCES[kind]
    sentence = _SENTENCES.get(kind) or _SUBJECT.sub("must", message).replace(" after validation", "")
    shown = "" if isinstance(value, dict | list) else f"{str(value)[:80]!r} "
    return f"{shown}{sentence[0].lower()}{sentence[1:]}"
