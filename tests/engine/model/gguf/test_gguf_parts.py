"""Models in several GGUF files, as llama-gguf-split cuts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from checkpoints import reference_model
from gguf_writer import write_gguf
from stepper import Sequence, Stepper

from octavo_engine.errors import ModelLoadError
from octavo_engine.model import loader
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.footprint import checkpoint_bytes
from octavo_engine.model.gguf.parts import read_model
from octavo_engine.model.loader import load_model
from octavo_engine.model.origin import size_of
from octavo_engine.model.source import ModelFiles, resolve_model

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
COUNT = 3


def _quiet(*_: Any) -> None:
    pass


def _cut(whole: Path, folder: Path) -> list[Path]:
    """The tensors of a file in turn in three files; the first has the metadata."""
    reader = gguf.GGUFReader(whole)
    metadata = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    paths = []
    for number in range(COUNT):
        paths.append(folder / f"tiny-{number + 1:05}-of-{COUNT:05}.gguf")
        writer = gguf.GGUFWriter(paths[-1], metadata["general.architecture"])
        for key, value in metadata.items() if number == 0 else ():
            if key != "general.architecture":
                add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
                add(key, value)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", COUNT)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for place, tensor in enumerate(reader.tensors):
            if place % COUNT == number:
                writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    (tmp_path / "whole").mkdir()
    return write_gguf(reference_model(), tmp_path / "whole" / "tiny.gguf")


def _logits(files: ModelFiles) -> torch.Tensor:
    decoder = load_model(files, read_spec(files), torch.device("cpu"), torch.float32, _quiet)
    return Stepper(decoder).step([(Sequence(TOKENS), len(TOKENS))])[0]


def test_a_model_in_several_files_is_the_one_in_a_single_file(whole: Path, tmp_path: Path) -> None:
    parts = _cut(whole, tmp_path)
    (tmp_path / "link").symlink_to(parts[0])  # as `octavo-engine pull --link` makes it
    expected = _logits(ModelFiles("m", gguf=whole))
    for name in (tmp_path, parts[0], parts[2]):
        files = resolve_model(str(name), None, _quiet)
        assert files.gguf == parts[0]
        assert checkpoint_bytes(files) == checkpoint_bytes(ModelFiles("m", gguf=whole))
        assert size_of(files) == sum(part.stat().st_size for part in parts)
    torch.testing.assert_close(_logits(files), expected, rtol=0, atol=0)
    assert read_model(tmp_path / "link").tensors == read_model(parts[0]).tensors


def test_a_folder_with_parts_of_two_models_needs_a_name(whole: Path, tmp_path: Path) -> None:
    _cut(whole, tmp_path)
    (tmp_path / "other-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"2 \.gguf files; name the one to load, such as .*other-00001-of-00002"):
        resolve_model(str(tmp_path), None, _quiet)


def _missing(parts: list[Path]) -> None:
    parts[1].unlink()


def _first_missing(parts: list[Path]) -> None:
    parts[0].unlink()


def _swapped(parts: list[Path]) -> None:
    kept = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    parts[2].write_bytes(kept)


def _whole_instead(parts: list[Path]) -> None:
    parts[1].write_bytes((parts[0].parent / "whole" / "tiny.gguf").read_bytes())


def _same_again(parts: list[Path]) -> None:
    """A part with a tensor of another one, whose name is of the same length."""
    names = [sorted(read_model(parts[0].parent / "whole" / "tiny.gguf").tensors)]
    content = parts[1].read_bytes()
    own = [name for name in names[0] if name.encode() in content]
    other = next(
        (mine, theirs)
        for mine in own
        for theirs in names[0]
        if theirs not in own and len(mine) == len(theirs) and theirs.encode() in parts[0].read_bytes()
    )
    parts[1].write_bytes(content.replace(other[0].encode(), other[1].encode()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_missing, "1 of the 3 files of the model are missing: tiny-00002-of-00003.gguf"),
        (_first_missing, "1 of the 3 files of the model are missing: tiny-00001-of-00003.gguf"),
        (_swapped, r"tiny-00002-of-00003.gguf: is not a part of the model in tiny-00001.*: its split.no is 2"),
        (_whole_instead, r"tiny-00002-of-00003.gguf: is not a part .*: its split.no is None and should be 1"),
        (_same_again, r"tiny-00002-of-00003.gguf: the tensor '.*' is in tiny-00001-of-00003.gguf, too"),
    ],
)
def test_files_that_are_not_the_parts_of_one_model_are_named(
    whole: Path, tmp_path: Path, change: Any, says: str
) -> None:
    parts = _cut(whole, tmp_path)
    change(parts)
    with pytest.raises(ModelLoadError, match=says) as caught:
        read_spec(resolve_model(str(tmp_path), None, _quiet))
    assert caught.value.exit_code == 3


def test_a_part_that_is_removed_after_its_header_was_read_is_named(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = _cut(whole, tmp_path)
    files = resolve_model(str(tmp_path), None, _quiet)
    monkeypatch.setattr(loader, "_check", lambda *_: parts[1].unlink())
    with pytest.raises(ModelLoadError, match=r"tiny-00002-of-00003.gguf: cannot be read as a GGUF file: .*No such"):
        _logits(files)
    with pytest.raises(ModelLoadError, match=r"1 of the 3 files of the model are missing: tiny-00002"):
        size_of(files)


def test_a_part_that_lacks_tensors_is_noticed(whole: Path, tmp_path: Path) -> None:
    parts = _cut(whole, tmp_path)
    for part in parts:
        content = part.read_bytes()
        at = content.index(b"split.tensors.count") + len(b"split.tensors.count") + 4
        part.write_bytes(content[:at] + (99).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(ModelLoadError, match=r"have \d+ tensors, and split.tensors.count is 99"):
        read_model(parts[0])
