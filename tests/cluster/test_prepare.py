"""Missing requirements of the machine are reported before anything is started."""

import os
import shutil
from pathlib import Path

import pytest

from . import images
from .errors import ClusterError
from .packages import ensure_packages


def test_without_root_the_error_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match=r"needs root .*`sudo make cluster`") as caught:
        ensure_packages(print)
    assert caught.value.exit_code == 2


def test_without_apt_the_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program in ("apt-get", "runc", "nft") else "/bin/x")
    with pytest.raises(ClusterError, match=r": nftables runc$") as caught:
        ensure_packages(print)
    assert caught.value.exit_code == 2


@pytest.fixture
def private_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout as `git clone` makes it under umask 077."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("pyproject.toml", ".venv/bin/octavo-engine", ".venv/bin/octavo-operator"):
        (tmp_path / name).touch(mode=0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(images, "CHECKOUT", tmp_path)
    monkeypatch.setattr(images, "SCRIPTS", tmp_path / ".venv" / "bin")
    images.check_readable()
    return tmp_path


@pytest.mark.parametrize("closed", ["pyproject.toml", ".venv/bin", ".venv/bin/octavo-engine", "."])
def test_code_that_pods_could_not_read_is_named(private_checkout: Path, closed: str) -> None:
    (private_checkout / closed).chmod(0o700)
    with pytest.raises(
        ClusterError, match=f"{(private_checkout / closed)} is closed to other users, .*chmod -R o"
    ) as caught:
        images.check_readable()
    assert caught.value.exit_code == 2


def test_a_checkout_without_its_environment_names_make_setup(private_checkout: Path) -> None:
    (private_checkout / ".venv" / "bin" / "octavo-engine").unlink()
    with pytest.raises(ClusterError, match="run `make setup`"):
        images.check_readable()
