"""Fetching a model from the Hugging Face hub, with progress and with one sentence for each way it can fail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo_engine.errors import ModelLoadError

if TYPE_CHECKING:
    from octavo_engine.model.source import Progress

PATTERNS = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt")
"""Weights, configuration, tokenizer, chat template. Never code (*.py) and never pickles (*.bin, *.pt)."""
_IGNORED = ("*/*", "consolidated*.safetensors")
"""Other formats of the same weights lie in subfolders (onnx/, original/) or beside the sharded files."""


def pull(repository: str, revision: str | None, progress: Progress) -> Path:
    """The directory of a repository's snapshot; honours HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE."""
    from huggingface_hub import snapshot_download

    progress("pulling", 0.0, f"asking for {repository}")
    try:
        directory = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=list(PATTERNS),
            ignore_patterns=list(_IGNORED),
            tqdm_class=_reporter(progress),
        )
    except Exception as error:  # whatever the library raises becomes one sentence
        raise ModelLoadError(_explain(repository, revision, error)) from error
    progress("pulling", 1.0, repository)
    return Path(directory)


def _reporter(progress: Progress) -> type[Any]:
    """A progress bar class for the hub library that draws nothing and reports bytes to `progress`."""
    from tqdm.auto import tqdm

    from octavo_engine.config import format_size

    class Reporter(tqdm):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})
            self.unit = kwargs.get("unit", "it")
            self.total = kwargs.get("total") or 0

        def update(self, n: float | None = 1) -> None:
            # A disabled bar counts nothing by itself.
            self.n += n or 0
            if self.unit == "B" and self.total:
                ratio = min(1.0, self.n / self.total)
                progress("pulling", ratio, f"{format_size(self.n)} of {format_size(self.total)}")

    return Reporter


def _explain(repository: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import errors

    wanted = f"{repository}@{revision}" if revision else repository
    if isinstance(error, errors.GatedRepoError):
        return f"{wanted}: the model is gated; accept its terms on its page and set HF_TOKEN to a token of that account"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{wanted}: the repository has no revision {revision!r}; give a branch, tag or commit that exists"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{wanted}: no such model on the Hugging Face hub (or it is private and HF_TOKEN does not open it), and no "
            "such directory here"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"{wanted}: not in the local cache, and the hub cannot be reached (HF_HUB_OFFLINE set, or no network); "
            "nor is there such a directory here; pull it where there is a network, or set HF_ENDPOINT to a mirror"
        )
    if isinstance(error, OSError) and error.errno is not None:
        return f"{wanted}: cannot be stored: {error.strerror} ({error.filename}); HF_HOME says where the cache is"
    first_line = (str(error) or type(error).__name__).splitlines()[0]
    return f"{wanted}: could not be fetched: {first_line}"
