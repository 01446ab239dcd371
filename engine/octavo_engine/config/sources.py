"""Reading of the configuration from its three sources: flags, `OCTAVO_…` variables and the file of `--config`."""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo_engine.config.engine import EngineConfig
from octavo_engine.config.server import ServerConfig
from octavo_engine.config.setting import Setting, flag_name, settings_of
from octavo_engine.config.yaml_file import load_yaml
from octavo_engine.errors import ConfigurationError

_PREFIX = "OCTAVO_"
_OF_SERVICE = re.compile(r"SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_\d+_.+")
"""What follows a Service's name in the variables that Kubernetes sets for it."""


def read_engine_config(args: argparse.Namespace, environ: Mapping[str, str]) -> EngineConfig:
    """Return the engine's configuration from flags, environment and file."""
    file = _read_file(args.config)
    return EngineConfig(model=args.model, **read_settings(EngineConfig, vars(args), environ, file))


def read_server_config(args: argparse.Namespace, environ: Mapping[str, str]) -> ServerConfig:
    """Return the HTTP process's configuration from flags, environment and file."""
    return ServerConfig(**read_settings(ServerConfig, vars(args), environ, _read_file(args.config)))


def unknown_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each `OCTAVO_…` variable that is not a setting's, and the nearest one that is; "" if none is near.

    The variables that Kubernetes sets for a Service are omitted, such as OCTAVO_OPERATOR_SERVICE_HOST. They begin with
    the Service's name.
    """
    known = [f.name.upper() for config in (EngineConfig, ServerConfig) for f, _ in settings_of(config)]
    services = [name.removesuffix("SERVICE_HOST") for name in environ if name.endswith("_SERVICE_HOST")]
    of_services = {
        name for name in environ for service in services if _OF_SERVICE.fullmatch(name.removeprefix(service))
    }
    for variable in environ:
        name = variable.removeprefix(_PREFIX)
        if name not in {variable, *known} and variable not in of_services:
            yield variable, "".join(_variable(close) for close in difflib.get_close_matches(name, known, 1))


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def _read_file(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    content = load_yaml(path, "--config")
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(f"--config {path} must hold keys and values, such as `max-num-seqs: 64`")
    known = [flag_name(f.name) for config in (EngineConfig, ServerConfig) for f, _ in settings_of(config)]
    for key in content:
        if flag_name(str(key)) not in known:
            close = difflib.get_close_matches(flag_name(str(key)), known, 1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise ConfigurationError(f"--config {path}: unknown key {key}{hint}")
    return content


def read_settings(
    config: type, flags: Mapping[str, Any], environ: Mapping[str, str], file: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of `config`'s settings that are given anywhere.

    A flag takes precedence over OCTAVO_<NAME>, and OCTAVO_<NAME> over the file. `flags` holds the command line's values
    by field name, None for flags that were not given, and the path of --config; `file` is that file's mapping, keyed by
    flag name with - or _.
    """
    values: dict[str, Any] = {}
    from_file = {str(key).replace("-", "_"): value for key, value in file.items()}
    for f, known in settings_of(config):
        name, variable, source = flag_name(f.name), _variable(f.name), ""
        if flags.get(f.name) is not None:
            raw = flags[f.name]
        elif variable in environ:
            raw, source = _listed(environ[variable]) if known.repeated else environ[variable], f"{variable} is set: "
        elif from_file.get(f.name) is not None:
            raw, source = from_file[f.name], f"--config {flags['config']}: "
        else:
            continue
        if known.repeated and isinstance(raw, list):
            raw = [each for text in raw for each in _from_json(text)]
        try:
            values[f.name] = _parse_all(known, name, raw if isinstance(raw, list) else [raw])
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}{error}") from None
    return values


def _listed(text: str) -> list[str]:
    """Split an environment variable into its values: separated by commas, or one JSON object or list of values."""
    if not text.lstrip().startswith(("{", "[")):
        return text.split(",")
    try:
        found = json.loads(text)
    except ValueError:
        return [text]
    return [
        each if isinstance(each, str) else json.dumps(each) for each in (found if isinstance(found, list) else [found])
    ]


def _from_json(value: Any) -> list[Any]:
    """Return the values of a flag that is given as one JSON list, as some of vLLM's are; other values unchanged."""
    return _listed(value) if isinstance(value, str) and value.lstrip().startswith("[") else [value]


def _parse_all(known: Setting, name: str, raw: Sequence[Any]) -> Any:
    parsed = [known.parse(name, json.dumps(value) if isinstance(value, dict) else str(value)) for value in raw]
    if known.repeated:
        return parsed
    if len(parsed) != 1:
        raise ConfigurationError(f"--{name} takes one value, not {len(parsed)}")
    return parsed[0]
