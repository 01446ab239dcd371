"""Reading of the configuration from its three sources: flags, `OCTAVO_…` variables and the file of `--config`."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo_engine.config import EngineConfig, ServerConfig, flag_name, read_settings, settings_of
from octavo_engine.errors import ConfigurationError
from octavo_engine.yaml_file import load_yaml


def read_engine_config(args: argparse.Namespace, environ: Mapping[str, str]) -> EngineConfig:
    """Return the engine's configuration from flags, environment and file."""
    file = _read_file(args.config)
    return EngineConfig(model=args.model, **read_settings(EngineConfig, vars(args), environ, file))


def read_server_config(args: argparse.Namespace, environ: Mapping[str, str]) -> ServerConfig:
    """Return the HTTP process's configuration from flags, environment and file."""
    return ServerConfig(**read_settings(ServerConfig, vars(args), environ, _read_file(args.config)))


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
