"""Settings by flag, environment and file: all have the same types; a flag precedes the environment, that the file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.cli import build_parser
from octavo_engine.config import EngineConfig, ServerConfig
from octavo_engine.config.setting import flag_name
from octavo_engine.config.sources import read_engine_config, read_server_config
from octavo_engine.errors import ConfigurationError

# Kind: setting, and three pairs of text and value: of the flag, the environment and the file.
Case = tuple[str, tuple[str, Any], tuple[str, Any], tuple[str, Any]]
CASES: dict[str, Case] = {
    "int": ("max_num_seqs", ("11", 11), ("12", 12), ("13", 13)),
    "float": ("gpu_memory_utilization", ("0.5", 0.5), ("0.6", 0.6), ("0.7", 0.7)),
    "bool": ("enforce_eager", ("", True), ("false", False), ("true", True)),
    "size": ("kv_cache_memory", ("1GiB", 1 << 30), ("512MiB", 512 << 20), ("2GiB", 2 << 30)),
    "str": ("attention_backend", ("torch", "torch"), ("triton", "triton"), ("auto", "auto")),
    "path": ("api_key_file", ("keys/a", Path("keys/a")), ("keys/b", Path("keys/b")), ("keys/c", Path("keys/c"))),
    "repeated": ("served_model_name", ("one", ["one"]), ("two,three", ["two", "three"]), ("[x, y]", ["x", "y"])),
}


def read(arguments: list[str], environ: dict[str, str], file: Path | None) -> dict[str, Any]:
    """All settings of `serve` as it would read them."""
    given = ["serve", "smollm2", *arguments, *([f"--config={file}"] if file else [])]
    args = build_parser().parse_args(given)
    configs: list[EngineConfig | ServerConfig] = [read_engine_config(args, environ), read_server_config(args, environ)]
    return {field.name: getattr(config, field.name) for config in configs for field in dataclasses.fields(config)}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_flag_wins_over_the_environment_and_that_over_the_file(case, tmp_path):
    name, (flag_text, flag), (variable_text, variable), (file_text, from_file) = case
    file = write(tmp_path / "octavo.yaml", f"{flag_name(name)}: {file_text}\n")
    arguments = [f"--{flag_name(name)}={flag_text}" if flag_text else f"--{flag_name(name)}"]
    environ = {f"OCTAVO_{name.upper()}": variable_text}
    assert read(arguments, environ, file)[name] == flag
    assert read([], environ, file)[name] == variable
    assert read([], {}, file)[name] == from_file
    assert read(arguments, {}, file)[name] == flag
    assert read(arguments, environ, None)[name] == flag
    assert len({str(flag), str(variable), str(from_file)}) >= 2


def test_a_setting_without_a_source_is_the_default():
    nothing = read([], {}, None)
    config = EngineConfig(model="smollm2")
    server = ServerConfig()
    for name, value in nothing.items():
        assert value == getattr(config if hasattr(config, name) else server, name)


def test_off_is_reported_in_all_three_ways(tmp_path):
    file = write(tmp_path / "octavo.yaml", "enable-prefix-caching: false\n")
    assert read([], {}, None)["enable_prefix_caching"] is True
    assert read(["--no-enable-prefix-caching"], {}, None)["enable_prefix_caching"] is False
    assert read([], {"OCTAVO_ENABLE_PREFIX_CACHING": "off"}, None)["enable_prefix_caching"] is False
    assert read([], {}, file)["enable_prefix_caching"] is False
    assert read(["--enable-prefix-caching"], {}, file)["enable_prefix_caching"] is True


def test_a_file_writes_names_either_way_and_values_as_yaml_has_them(tmp_path):
    file = write(tmp_path / "octavo.yaml", "max_num_seqs: 9\nmax-num-batched-tokens: 512\nserved-model-name: mine\n")
    values = read([], {}, file)
    assert (values["max_num_seqs"], values["max_num_batched_tokens"]) == (9, 512)
    assert values["served_model_name"] == ["mine"]
    assert read(["--served-model-name=a", "--served-model-name=b"], {}, file)["served_model_name"] == ["a", "b"]


WRONG_FILES = {
    "mistyped": ("max-num-seq: 4\n", "unknown key max-num-seq, did you mean max-num-seqs?"),
    "no mapping": ("- max-num-seqs\n", "must hold keys and values"),
    "no YAML": ("a: [\n", "not valid YAML: see line 2"),
    "a tag that would run code": ("seed: !!python/object/apply:os.getpid []\n", "not valid YAML: see line 1"),
    "in words": ("max-num-seqs: many\n", "--max-num-seqs: 'many' is not a whole number"),
    "a fraction": ("max-num-seqs: 2.5\n", "--max-num-seqs: '2.5' is not a whole number"),
    "out of range": ("gpu-memory-utilization: 1.5\n", "--gpu-memory-utilization: 1.5 is above the largest"),
    "neither true nor false": ("enforce-eager: perhaps\n", "--enforce-eager: 'perhaps' is neither true nor false"),
    "no size": ("kv-cache-memory: 2 gigs\n", "--kv-cache-memory: '2 gigs' is not a size"),
    "no finite size": (f"kv-cache-memory: {'9' * 400}GiB\n", "it is larger than any memory"),
    "two for one": ("max-num-seqs: [1, 2]\n", "--max-num-seqs takes one value, not 2"),
    "no choice": ("attention-backend: fast\n", "--attention-backend: 'fast' is not one of auto, triton, varlen,"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_wrong_file_is_one_sentence(text, message, tmp_path):
    with pytest.raises(ConfigurationError) as caught:
        read([], {}, write(tmp_path / "octavo.yaml", text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("kv_cache_memory", "64MiB", "a number, of bytes"), ("max_num_seqs", "4", "give a number")],
)
def test_text_for_a_number_in_python_is_one_sentence(name, text, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        EngineConfig(model="m", **{name: text})
    assert f"--{name.replace('_', '-')}: '{text}'" in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read([], {}, tmp_path / "absent.yaml")
