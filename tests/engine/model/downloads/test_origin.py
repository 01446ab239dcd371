"""The identity of a model: its commit, also behind the link that a pod's engine gets, and the size of its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_engine.commands.pull import _link
from octavo_engine.model.origin import commit_of, size_of
from octavo_engine.model.source import ModelFiles, resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A repository of one commit as the hub's cache keeps it: files are links to their content."""
    cache = tmp_path / "hub" / "models--octavo--tiny"
    folder, blobs = cache / "snapshots" / COMMIT, cache / "blobs"
    for made in (folder, blobs):
        made.mkdir(parents=True)
    for name, content in (("config.json", b"{}"), ("model.safetensors", b"x" * 1000)):
        (blobs / name).write_bytes(content)
        (folder / name).symlink_to(blobs / name)
    return folder


def local(path: Path) -> ModelFiles:
    return resolve_model(str(path), None, lambda *_: None)


def test_the_commit_is_known_behind_the_link_of_a_pod(snapshot: Path, tmp_path: Path) -> None:
    link = tmp_path / "model"
    link.symlink_to(snapshot)
    assert commit_of(local(link)) == COMMIT
    assert commit_of(ModelFiles("octavo/tiny", directory=tmp_path, commit="abc")) == "abc"


def test_the_commit_of_a_gguf_file_in_the_cache(snapshot: Path) -> None:
    content = snapshot.parents[1] / "blobs" / "gguf"
    content.write_bytes(b"GGUF")
    (snapshot / "tiny.gguf").symlink_to(content)
    assert commit_of(local(snapshot / "tiny.gguf")) == COMMIT


def test_a_gguf_model_in_parts_behind_the_link_of_a_pod(snapshot: Path, tmp_path: Path) -> None:
    """Each part in the cache is a link to a file whose name does not say which part it is."""
    parts = [snapshot / "Q4_K_M" / f"tiny-Q4_K_M-0000{number}-of-00002.gguf" for number in (1, 2)]
    parts[0].parent.mkdir()
    for part in parts:
        content = snapshot.parents[1] / "blobs" / f"content{part.name[13:18]}"
        content.write_bytes(b"GGUF" + b"x" * 96)
        part.symlink_to(content)
    _link(parts[0], tmp_path / "model")
    files = local(tmp_path / "model")
    assert (files.gguf, commit_of(files), size_of(files)) == (parts[0], COMMIT, 200)


@pytest.mark.parametrize("name", ["model", "snapshots/main", f"models/{COMMIT}"])
def test_any_other_folder_has_no_commit(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert commit_of(local(folder)) is None


def test_the_size_is_that_of_the_weights_alone(snapshot: Path, tmp_path: Path) -> None:
    assert size_of(local(snapshot)) == 1000
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + b"x" * 96)
    assert size_of(local(tmp_path / "a.gguf")) == 100
