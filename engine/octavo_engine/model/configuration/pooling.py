"""Reads from sentence-transformers' files, or a GGUF header, how a text's hidden states become one vector."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.fields import Fields
from octavo_engine.model.gguf.file import read_gguf
from octavo_engine.model.gguf.parts import read_model
from octavo_engine.model.layers.embeddings.dense_modules import DenseModule, dense_of, read_dense
from octavo_engine.model.model_file import has_file, read_file
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec

_MAX_BYTES = 1 << 20

_MODES = {
    "lasttoken": "last",
    "last": "last",
    "cls_token": "cls",
    "cls": "cls",
    "mean_tokens": "mean",
    "mean": "mean",
    "max_tokens": "max",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "mean_sqrt_len": "mean_sqrt_len",
    "weightedmean_tokens": "weightedmean",
    "weightedmean": "weightedmean",
}
"""The kinds of pooling, by the endings of field names in 1_Pooling/config.json and by values of `pooling_mode` there.
"""

_GGUF_MODES = ("none", "mean", "cls", "last", "rank")
"""The kinds of pooling by their numbers in GGUF headers; `rank` is a reranker's, whose head gives a score."""


@dataclass(frozen=True, slots=True)
class PoolingConfig:
    """The steps from hidden states to a vector."""

    kind: str = "last"
    """`last`: the last token's hidden state, the default of models that generate; or another kind that the files name.
    """
    normalize: bool = True
    """Whether vectors have length 1."""
    dense: tuple[DenseModule, ...] = ()
    """The linear layers that are applied to the vector before it is normalised."""

    def size(self, hidden_size: int) -> int:
        """Return the size of the vectors."""
        return self.dense[-1].outputs if self.dense else hidden_size


def pooling_of(files: ModelFiles, spec: ModelSpec) -> PoolingConfig:
    """Return the pooling of the model in `files`: a classifier's by its head, all others' by their files."""
    if spec.classifier is not None:
        return PoolingConfig(spec.classifier.pooling, normalize=False)
    pooling = read_pooling(files)
    if pooling.dense and pooling.dense[0].inputs != (size := spec.vector_size or spec.hidden_size):
        sizes = f"{pooling.dense[0].inputs} numbers, and the model's vectors have {size}"
        raise ModelLoadError(f"{pooling.dense[0].folder}: takes {sizes}")
    for before, after in pairwise(pooling.dense):
        if after.inputs != before.outputs:
            raise ModelLoadError(f"{after.folder}: takes {after.inputs} numbers, and gets {before.outputs}")
    # An encoder's last token is a separator; sentence-transformers take the mean where no file says anything.
    return pooling if spec.causal or _says_pooling(files) else PoolingConfig("mean", dense=pooling.dense)


def read_pooling(files: ModelFiles) -> PoolingConfig:
    """Read the pooling from modules.json and the files that it names; the default without them.

    Raises ModelLoadError if they are broken.
    """
    if files.gguf is not None:
        kind = _gguf_pooling(files) or "last"
        return PoolingConfig(kind, dense=dense_of(read_model(files.gguf)))
    if files.directory is None or not _says_pooling(files):
        return PoolingConfig()
    modules = _read(files.directory / "modules.json")
    try:
        named = [(module["type"].rsplit(".", 1)[-1], str(module.get("path", ""))) for module in modules]
    except (TypeError, KeyError, AttributeError):
        raise ModelLoadError(f"{files.directory / 'modules.json'}: is not a list of modules with their types") from None
    _check_folders(files.directory, [path for _, path in named])
    kinds = dict(named)
    if unknown := sorted(kinds.keys() - {"Transformer", "Pooling", "Dense", "Normalize"}):
        return PoolingConfig(kind=f"{', '.join(unknown)} after the model")
    config = _read(files.directory / str(kinds["Pooling"]) / "config.json") if "Pooling" in kinds else {}
    order = [kind for kind, _ in named if kind != "Transformer"]
    if order != sorted(order, key=["Pooling", "Dense", "Normalize"].index):
        return PoolingConfig(kind=f"{', '.join(order)} in this order")
    folders = [files.directory / path for kind, path in named if kind == "Dense"]
    dense = tuple(read_dense(folder, _read(folder / "config.json")) for folder in folders)
    return PoolingConfig(_kind(config) if "Pooling" in kinds else "none", "Normalize" in kinds, dense)


def _check_folders(directory: Path, paths: list[str]) -> None:
    """Raise ModelLoadError unless all are the model's own folders: modules.json is not trusted."""
    for path in paths:
        if ".." in Path(path).parts or Path(path).is_absolute() or "\0" in path:
            raise ModelLoadError(
                f"{directory / 'modules.json'}: names {path[:200]!r}, which is not a folder of the model"
            )


def _says_pooling(files: ModelFiles) -> bool:
    """Return True if the model has the files of sentence-transformers, or a GGUF header that names a kind."""
    if files.gguf is not None:
        return _gguf_pooling(files) is not None
    return files.directory is not None and has_file(files.directory / "modules.json")


def _gguf_pooling(files: ModelFiles) -> str | None:
    """Return the kind of pooling in a GGUF header, whose vectors have length 1; None if there is none."""
    if files.gguf is None:
        return None
    file = read_gguf(files.gguf)
    key = f"{file.architecture}.pooling_type"
    if key not in file.metadata:
        return None
    return _GGUF_MODES[Fields(str(files.gguf), file.metadata).integer(key, 0, len(_GGUF_MODES) - 1)]


def longest_text(files: ModelFiles) -> int | None:
    """Return the most tokens of a text that sentence-transformers would read; None: the model's longest context."""
    if files.directory is None or not has_file(files.directory / "sentence_bert_config.json"):
        return None
    path = files.directory / "sentence_bert_config.json"
    fields = Fields(str(path), _read(path))
    return fields.integer("max_seq_length", 1, 1 << 30) if fields.has("max_seq_length") else None


def _kind(config: dict[str, Any]) -> str:
    """Return the kind of pooling as sentence-transformers read it, which is the mean unless the file says another one.

    Several kinds are joined by "and".
    """
    if (named := config.get("pooling_mode")) is not None:
        chosen = named if isinstance(named, list) else [named]
    else:
        chosen = [name.removeprefix("pooling_mode_") for name, on in config.items() if on is True and "_mode_" in name]
    return " and ".join(_MODES.get(name, name) for name in map(str, chosen)) or "mean"


def _read(path: Path) -> Any:
    try:
        return json.loads(read_file(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: cannot be read as JSON: {error}") from None
