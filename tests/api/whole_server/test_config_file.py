"""`--config FILE`: for a broken file the error is one line and the exit code 2."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from octavo_engine.config.sources import read_server_config
from octavo_engine.errors import ConfigurationError


def read(path: Path) -> int:
    return read_server_config(argparse.Namespace(config=path), {}).port


def test_a_configuration_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "octavo.yaml"
    path.write_text("port: 1234\nmax-num-seqs: 3\n")
    assert read(path) == 1234


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"port: 2026-99-99", "not valid YAML"),
        (b"port: " + b"9" * 5000, "not valid YAML"),
        (b"port: !!int x", "not valid YAML"),
        (b"port: !!timestamp x", "not valid YAML"),
        (b"port: !!bool {}", "not valid YAML"),
        (b"a: b\nport: [", "line 2, column 8"),
        (b"[" * 100_000, "not valid YAML"),
        (b"\xff\xfe\xff", "not valid YAML"),
        (b"port: \x00", "not valid YAML"),
        (b"- port", "must hold keys and values"),
        (b"prot: 1", "did you mean port?"),
        (b"? !!python/name:os.system\n: 1", "not valid YAML"),
    ],
)
def test_a_broken_configuration_file_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "octavo.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_there_or_has_no_end(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match="has more than"):
        read(Path("/dev/zero"))
