"""Fetches models from the Hugging Face hub, with progress, and with one sentence for each way it can fail."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.downloads.download import DownloadProgress, Report, check_room, without_queries
from octavo_engine.sizes import format_size

SMALL = ("*.json", "*.jinja", "tokenizer.model", "*.txt")
"""Patterns of the small files: configuration, tokenizer, chat template. Code (*.py) is never fetched."""
WEIGHTS = ("*.safetensors",)
"""Patterns of weight files. Pickles (*.bin, *.pt) are never fetched."""
IGNORED = ("[!0-9]*/*", "*/*/*", "[0-9]*_[!D]*/*.safetensors", "consolidated*.safetensors")
"""Patterns of files that are not fetched. Other formats of the same weights are in subfolders (onnx/, original/) or
beside the sharded files. Folders that begin with a number belong to sentence-transformers: pooling.py reads the
configuration in them (1_Pooling/), dense_modules.py configuration and weights of linear layers (2_Dense/). Weights in
other such folders would be the model's again (0_Transformer/)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository, in the cache."""

    directory: Path
    commit: str
    """The commit that `revision` named at that time; a branch can move on to another one."""


def pull(repository: str, revision: str | None, report: Report, *, weights: bool) -> Snapshot:
    """Fetch a repository's files, with `weights` or without; HF_TOKEN, HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE apply.

    Files in the cache are not fetched again. ModelLoadError if the model does not exist, cannot be reached or does not
    fit on the disk.
    """
    return fetch(repository, revision, [*SMALL, *(WEIGHTS if weights else ())], report, ignored=IGNORED)


def fetch(
    repository: str, revision: str | None, patterns: Sequence[str], report: Report, *, ignored: Sequence[str] = ()
) -> Snapshot:
    """Do what `pull` does with the files whose paths match one of `patterns`, and none of `ignored`."""
    report(DownloadProgress(note=f"asking {host()} for {repository}"))  # before an import that may take seconds
    from huggingface_hub import snapshot_download

    _keep_signatures_out_of_the_log()
    wanted: dict[str, Any] = {
        "revision": revision,
        "allow_patterns": list(patterns),
        "ignore_patterns": list(ignored),
    }
    total = 0
    try:
        unanswered, total = _bytes_to_fetch(repository, wanted)
        if unanswered is not None:
            directory = _cached(repository, wanted, unanswered)
        else:
            if total:
                _check_room(repository, total)
                report(DownloadProgress(0, total, f"{format_size(total)} to fetch"))
            directory = Path(snapshot_download(repository, **wanted, tqdm_class=_reporter(report, total)))
    except ModelLoadError:
        raise
    except Exception as error:  # whatever the library raises becomes one sentence
        raise ModelLoadError(explain(repository, revision, error)) from error
    report(DownloadProgress(total, total, repository, complete=True))
    return Snapshot(directory, commit=directory.name)  # the cache keeps each commit in a folder of its name


def _keep_signatures_out_of_the_log() -> None:
    """Remove queries from the library's log lines about URLs that broke off: a signed query gives access."""

    def cut(record: logging.LogRecord) -> bool:
        record.msg, record.args = without_queries(record.getMessage()), None
        return True

    for handler in logging.getLogger("huggingface_hub").handlers:
        if not handler.filters:
            handler.addFilter(cut)


def host() -> str:
    """Return the name of the hub that is asked."""
    return urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").netloc


def _bytes_to_fetch(repository: str, wanted: dict[str, Any]) -> tuple[BaseException | None, int]:
    """Return None and how much a download would transfer, or else the reason why the hub does not say."""
    from huggingface_hub import errors, snapshot_download

    try:
        planned = snapshot_download(repository, **wanted, dry_run=True, tqdm_class=_reporter(lambda _: None, 0))
    except errors.DryRunError as error:
        return error.__cause__ or error, 0
    return None, sum(file.file_size or 0 for file in planned if file.will_download)


def _cached(repository: str, wanted: dict[str, Any], unanswered: BaseException) -> Path:
    """Return the model's folder in the cache; `unanswered`, the hub's error, is raised if not all of it is there."""
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(repository, **wanted, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        raise unanswered from None


def _check_room(repository: str, needed: int) -> None:
    from huggingface_hub import constants

    check_room(repository, Path(constants.HF_HUB_CACHE).expanduser(), needed, "HF_HOME")


def _reporter(report: Report, total: int) -> type[Any]:
    """Return a progress bar class for the hub library that draws nothing and reports bytes of `total`."""
    from tqdm.auto import tqdm

    done = 0

    class Reporter(tqdm):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})
            self.counts_bytes = kwargs.get("unit") == "B"
            self.total = kwargs.get("total") or 0

        def update(self, n: float | None = 1) -> None:
            nonlocal done
            # A disabled bar counts nothing by itself. The library has two bars, of bytes received and bytes stored; the
            # larger number is shown.
            self.n += n or 0
            if self.counts_bytes and total and self.n > done:
                done = min(int(self.n), total)
                report(DownloadProgress(done, total))

    return Reporter


def explain(repository: str, revision: str | None, error: Exception) -> str:
    """Return one sentence about what the hub's library has raised, with what to do about it."""
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
    if (reason := _unreached(error)) is not None:
        return f"{wanted}: not complete in the local cache, nor is there such a directory here, and {reason}"
    if isinstance(error, OSError) and error.errno is not None:
        where = f" ({error.filename})" if error.filename else ""
        return f"{wanted}: cannot be stored: {error.strerror}{where}; HF_HOME says where the cache is"
    return f"{wanted}: could not be fetched: {_first_line(error)}"


def _unreached(error: BaseException | None) -> str | None:
    """Return why the hub was not reached, with what to do about it; None if it was."""
    import httpx2
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE does not allow asking the hub; unset it, or pull the model where there is a network"
    if isinstance(error, httpx2.TransportError):
        why = re.sub(r"^\[Errno -?\d+\] ", "", _first_line(error))
        return f"{host()} cannot be reached: {why}; pull it where there is a network, or set HF_ENDPOINT to a mirror"
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code >= 500:
        return f"{host()} answers {error.response.status_code}; try again later, or set HF_ENDPOINT to a mirror"
    wraps = errors.LocalEntryNotFoundError, errors.RevisionResolutionError
    return _unreached(error.__cause__) if isinstance(error, wraps) else None


def _first_line(error: BaseException) -> str:
    return without_queries((str(error) or type(error).__name__).splitlines()[0])
