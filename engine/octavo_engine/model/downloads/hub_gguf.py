"""Fetches one of the models in a hub's repository of GGUF files, whose files differ in how they are quantized."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.downloads.download import DownloadProgress, Report, cache_home
from octavo_engine.model.downloads.gguf_header import is_stored, store_header
from octavo_engine.model.downloads.hub import WEIGHTS, explain, fetch, host
from octavo_engine.model.gguf.part_names import part_names
from octavo_engine.model.gguf.quantization_tags import model_of, models_in


def pull(repository: str, tag: str | None, revision: str | None, report: Report, *, weights: bool) -> tuple[Path, str]:
    """Return the file of the model that `tag` names, the first of one in parts, and the commit; see `hub.pull`.

    Without `weights`, what is not in the cache is fetched as sparse files that hold the headers alone. ModelLoadError
    as of `hub.pull`, and if the repository has no such model, or several.
    """
    report(DownloadProgress(note=f"asking {host()} for {repository}"))
    try:
        commit, sizes = _listing(repository, revision)
    except Exception as error:  # whatever the library raises becomes one sentence
        raise ModelLoadError(explain(repository, revision, error)) from error
    parts = part_names(model_of(repository, sizes, tag))
    if missing := [part for part in parts if part not in sizes]:
        raise ModelLoadError(
            f"{repository}: the repository lacks {len(missing)} of the {len(parts)} files of the model: {missing[0]}"
        )
    if not weights and not _are_cached(repository, commit, parts):
        home = cache_home() / "hub" / repository.replace("/", "--") / commit
        for part in parts:
            _fetch_header(repository, commit, part, sizes[part], home / part, report)
        return home / parts[0], commit
    snapshot = fetch(repository, commit, [glob.escape(part) for part in parts], report)
    return snapshot.directory / parts[0], commit


def holds_only_gguf(repository: str, commit: str) -> bool:
    """Return True if a pulled repository has models in GGUF files, and no other weights that are read."""
    from huggingface_hub import errors, get_cached_repo_tree

    try:
        paths = [file.path for file in get_cached_repo_tree(repository, revision=commit)]
    except errors.CachedRepoTreeNotFoundError:  # pulled by an older version of the library
        return False
    return bool(models_in(paths)) and not any(fnmatch(path, pattern) for path in paths for pattern in WEIGHTS)


def _listing(repository: str, revision: str | None) -> tuple[str, dict[str, int]]:
    """Return the commit that `revision` names, and its files with their sizes, from the cache if the hub is not
    there."""
    from huggingface_hub import HfApi, errors, get_cached_repo_tree
    from huggingface_hub.hf_api import RepoFile

    commit = HfApi().resolve_revision(repository, revision=revision).resolved
    try:
        tree = get_cached_repo_tree(repository, revision=commit)
    except errors.CachedRepoTreeNotFoundError:
        tree = HfApi().list_repo_tree(repository, recursive=True, revision=commit)
    return commit, {file.path: file.size for file in tree if isinstance(file, RepoFile)}


def _are_cached(repository: str, commit: str, parts: list[str]) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return all(isinstance(try_to_load_from_cache(repository, part, revision=commit), str) for part in parts)


def _fetch_header(repository: str, commit: str, part: str, size: int, header: Path, report: Report) -> None:
    if is_stored(header, size):
        return
    report(DownloadProgress(note=f"reading the header of {repository}/{part}"))
    try:
        store_header(_pieces(repository, commit, part), size, header, part)
    except ModelLoadError:
        raise
    except Exception as error:  # whatever the library raises becomes one sentence
        raise ModelLoadError(explain(repository, commit, error)) from error


def _pieces(repository: str, commit: str, part: str) -> Iterator[bytes]:
    """Yield the bytes of a file, of which only those that are read are transferred."""
    from huggingface_hub import constants, get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    url, timeout = hf_hub_url(repository, part, revision=commit), constants.HF_HUB_DOWNLOAD_TIMEOUT
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=timeout) as response:
        hf_raise_for_status(response)
        yield from response.iter_bytes(1 << 18)
