"""The contract of both programs: the engine parses each flag that the operator renders or accepts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_engine.cli import build_parser
from octavo_engine.config import EngineConfig
from octavo_engine.config.setting import settings_of
from octavo_engine.config.sources import read_engine_config, read_server_config
from octavo_engine.engine.info import MemoryInfo, ModelInfo
from octavo_engine.errors import ConfigurationError
from octavo_engine.speculative.settings import METHODS
from octavo_operator.api.crd import custom_resource_definition
from octavo_operator.api.engine_flags import EXTRA, FIELDS, RESERVED, SERVER_EXTRA, SPECULATIVE_METHODS
from octavo_operator.api.resource import LLMService, parse
from octavo_operator.cli import main
from octavo_operator.reconcile.pods.load_report import LoadReport, MemoryReport, ModelReport
from octavo_operator.render import unsupported_fields
from octavo_operator.render.container import arguments
from tests.operator.bad_llmservices import VALID, merged
from tests.operator.golden import container, fetched, inputs, llmservice


def parser_of(command: str) -> argparse.ArgumentParser:
    (commands,) = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    found: argparse.ArgumentParser = commands.choices[command]
    return found


def engine_flags() -> set[str]:
    return flags_of(parser_of("serve"))


def pull_flags() -> set[str]:
    return flags_of(parser_of("pull"))


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    options = [option for action in parser._actions for option in action.option_strings]
    return {option.removeprefix("--") for option in options if option.startswith("--")}


@pytest.mark.parametrize("case", inputs())
def test_the_engine_takes_what_is_rendered_or_no_pod_is_made(case: str) -> None:
    engine = container(case)
    assert engine["command"] == ["octavo-engine"]
    assert build_parser().parse_args(engine["args"]).model == engine["args"][1]
    assert bool(refusal(engine["args"])) == blocked(llmservice(inputs()[case])), refusal(engine["args"])


@pytest.mark.parametrize("case", fetched())
def test_the_engine_fetches_with_what_it_is_served_with(case: str) -> None:
    fetch = container(case, "fetch", "initContainers")
    assert fetch["command"] == ["octavo-engine"]
    fetched, served = (build_parser().parse_args(each["args"]) for each in (fetch, container(case)))
    assert (fetched.command, fetched.check_memory, fetched.progress_port) == ("pull", True, int(served.port))
    for field, _ in settings_of(EngineConfig):
        if field.name != "revision":
            assert getattr(fetched, field.name) == getattr(served, field.name), field.name


def test_every_extra_flag_of_the_server_is_kept_from_fetching() -> None:
    assert set(EXTRA) - pull_flags() == SERVER_EXTRA


def refusal(arguments: list[str]) -> str:
    """Return the engine's error about its arguments; empty if it would start."""
    parsed = build_parser().parse_args(arguments)
    try:
        read_engine_config(parsed, {})
        read_server_config(parsed, {})
    except ConfigurationError as error:
        return str(error)
    return ""


def blocked(service: LLMService) -> bool:
    return bool(unsupported_fields(service.spec))


CLAIMS = {"claims": [{"name": "gpu", "resourceClaimTemplateName": "h100"}]}
ADAPTERS = [{"name": "sql", "source": {"huggingFace": {"repository": "owner/sql"}}}]
REFUSED = [
    {"engine": {"extraArgs": [f"--speculative-config={text}"]}}
    for text in ("{}", "[]", "{", '{"method": ["ngram"]}', '{"method": "eagle3", "num_speculative_tokens": 4}')
]
TAKEN = [
    {"engine": {"extraArgs": ['--speculative-config={"method": "ngram", "num_speculative_tokens": 4}']}},
    {"accelerator": {"count": 1}},
    {"accelerator": {"count": 2}},
    {"accelerator": {"count": 2}, "engine": {"extraArgs": ["--device=cpu"]}},
    {"accelerator": {"count": 2, **CLAIMS}},
    {"accelerator": CLAIMS, "engine": {"tensorParallelSize": 2}},
    {"accelerator": {"count": 2, **CLAIMS}, "engine": {"tensorParallelSize": 1}},
    *({"engine": {"quantization": name}} for name in ("awq", "gptq")),
    {"engine": {"quantization": "fp8", "extraArgs": ["--kv-cache-dtype=fp8"]}},
    {"engine": {"extraArgs": ["--kv-cache-dtype=auto", "--swap-space=1GiB", "--scheduling-policy=priority"]}},
    {"engine": {"extraArgs": ["--prefix-cache-policy=lfu", "--prefix-cache-ttl=3", "--target-ttft-p90=0.5"]}},
    {"engine": {"extraArgs": ["--seed=1", "--enforce-eager"]}},
    {"adapters": ADAPTERS},
    {"adapters": ADAPTERS, "engine": {"extraArgs": ["--max-loras=2", "--max-lora-rank=256", "--max-cpu-loras=20"]}},
]


@pytest.mark.parametrize(("spec", "refused"), [*((s, True) for s in REFUSED), *((s, False) for s in TAKEN)])
def test_no_pod_is_made_of_what_the_engine_refuses_and_of_nothing_else(spec: dict[str, Any], refused: bool) -> None:
    service = parse(merged(VALID, {"spec": spec}))
    assert bool(refusal(arguments(service))) is refused
    assert blocked(service) is refused


def test_every_speculative_method_of_the_engine_is_known() -> None:
    assert set(METHODS) == SPECULATIVE_METHODS


def test_every_flag_of_the_engine_is_rendered_reserved_or_let_through() -> None:
    """A new flag must be given its place here: otherwise no user could set it, or every user could."""
    assert engine_flags() == {*FIELDS, *RESERVED, *EXTRA} - {"model"}


def test_the_field_that_a_refused_flag_names_exists() -> None:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for path in FIELDS.values():
        found = schema
        for part in path.split("."):
            found = found["properties"][part]


def test_no_flag_has_two_places() -> None:
    assert not FIELDS.keys() & set(EXTRA)
    assert not FIELDS.keys() & RESERVED
    assert not RESERVED & set(EXTRA)


def test_a_device_among_the_extra_arguments_is_the_only_one() -> None:
    spec = {"accelerator": {"count": 2}, "engine": {"extraArgs": ["--device=cpu"]}}
    given = arguments(parse(merged(VALID, {"spec": spec})))
    assert [argument for argument in given if argument.startswith("--device")] == ["--device=cpu"]
    assert "--tensor-parallel-size=2" in given
    assert not any(argument.startswith("--gpu-memory-utilization") for argument in given)


def test_the_command_renders_nothing_of_what_makes_no_pod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "speculative.yaml"
    file.write_text(yaml.safe_dump(merged(VALID, {"spec": {"engine": {"extraArgs": ["--speculative-config={}"]}}})))
    assert main(["render", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--speculative-config" in said.err


def test_what_an_engine_says_of_its_model_is_understood() -> None:
    memory = MemoryInfo(weights=1, step=2, kv_per_token=3, total=4)
    for commit in ("0123456789abcdef0123456789abcdef01234567", None):
        model = ModelInfo(commit=commit, size=5)
        report = LoadReport.model_validate({"phase": "ready", "memory": memory.as_json(), "model": model.as_json()})
        assert report.memory == MemoryReport(weightBytes=1, stepBytes=2, kvBytesPerToken=3, totalBytes=4)
        assert report.model == ModelReport(resolvedRevision=commit, sizeBytes=5)
