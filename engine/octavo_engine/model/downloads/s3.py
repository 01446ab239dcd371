"""Fetching a model from a prefix of an S3 bucket: what `octavo-engine pull s3://bucket/prefix` does.

Credentials, region and endpoint come from the variables that all S3 tools read (AWS_ACCESS_KEY_ID, AWS_REGION,
AWS_ENDPOINT_URL …) or from the machine's own identity; AWS_SKIP_SIGNATURE=true is for public buckets. Each state of a
prefix has a folder of its own in the cache, named after the digest of its listing: objects that change never mix with
those that were there before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.downloads import incomplete_files
from octavo_engine.model.downloads.download import Counter, DownloadProgress, Report, cache_home, check_room
from octavo_engine.model.downloads.gguf_header import is_stored, store_header
from octavo_engine.model.downloads.hub import IGNORED, SMALL, WEIGHTS
from octavo_engine.model.downloads.s3_files import Entry, ObjectFiles, first_line, is_complete
from octavo_engine.model.gguf.part_names import first_parts, part_names
from octavo_engine.sizes import format_size

if TYPE_CHECKING:
    from obstore.store import S3Store

log = logging.getLogger(__name__)

_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/.*)?")
_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
_FILES_AT_ONCE = 8
_MOST_FOLDERS = 16
"""The most folders of sentence-transformers' modules: no published model has more."""
_HEADERS = "headers"
"""The folder of GGUF files that hold their headers alone. Earlier versions had one, header/header.gguf."""


def pull(url: str, report: Report, *, weights: bool) -> Path:
    """Return the folder with the prefix's files, without the weights if so asked; what is there is not fetched again.

    For .gguf files without `weights`, the folder has sparse files of the same length that hold the headers alone. If
    the store cannot be reached, the files of its last known state are used. ModelLoadError if there is no such model,
    if it cannot be fetched, or if it does not fit on the disk.
    """
    bucket, prefix = _parse(url)
    home = cache_home() / "s3" / bucket / _folder_name(prefix)
    report(DownloadProgress(note=f"asking for {url}"))
    try:
        store = _connect(bucket)
        listed = _listing(store, url, prefix)
    except _UnreachableError as error:
        entries, folder = _last_known(home, error)
        if missing := [entry.name for entry in _selected(entries, weights) if not is_complete(folder, entry)]:
            raise ModelLoadError(f"{error}; of the files in the cache, {', '.join(missing)} is missing") from error
        log.warning("%s; using the files in the cache", error)
        return folder
    folder = _remember(home, listed)
    ggufs = [entry for entry in listed if entry.name.endswith(".gguf")]
    if not weights and not all(is_complete(folder, entry) for entry in ggufs):
        for entry in ggufs:
            _fetch_header(store, url, entry, folder, report)
        return folder / _HEADERS
    _fetch_all(store, url, _selected(listed, weights), folder, report)
    report(DownloadProgress(note=url, complete=True))
    return folder


class _UnreachableError(ModelLoadError):
    """The store does not answer: what was fetched before may do."""


def _parse(url: str) -> tuple[str, str]:
    match = _URL.fullmatch(url)
    prefix = (match[2] or "").strip("/") if match else ""
    if match is None or ".." in prefix.split("/"):
        raise ModelLoadError(f"{url}: write s3://bucket/prefix, where bucket is the name of a bucket")
    return match[1], prefix


def _folder_name(prefix: str) -> str:
    """Return a name of its own for each prefix, of a length that every file system takes; its end is for people."""
    return f"{hashlib.sha256(prefix.encode()).hexdigest()[:32]}-{quote(prefix, safe='')[-100:]}"


def _connect(bucket: str) -> S3Store:
    try:
        from obstore.store import S3Store
    except ImportError:
        raise ModelLoadError(
            f"s3://{bucket}: fetching from S3 needs Octavo's extra s3, which is: pip install obstore certifi"
        ) from None
    from obstore import exceptions

    _have_certificates()
    try:
        # A client's timeout is for a whole request; ours are for one part each.
        return S3Store(bucket, retry_config=_RETRIES, client_options={"allow_http": True, "timeout": "5m"})
    except exceptions.BaseError as error:
        raise ModelLoadError(f"s3://{bucket}: {first_line(error)}") from error


def _have_certificates() -> None:
    """Have the library use Mozilla's certificates where the system has none, as in a small image: it would fail."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None:
        import certifi

        os.environ["SSL_CERT_FILE"] = certifi.where()


def _listing(store: S3Store, url: str, prefix: str) -> list[Entry]:
    """List what could belong to a model under `prefix`, or the one object that it names, in order of names."""
    from obstore import exceptions

    try:
        listed = store.list_with_delimiter(f"{prefix}/" if prefix else None)
        objects = [("", meta) for meta in listed["objects"]]
        if not objects and prefix:
            parent, slash, name = prefix.rpartition("/")
            objects = [("", store.head(f"{parent}{slash}{part}")) for part in part_names(name)]
        for path in _module_folders(listed["common_prefixes"]):
            in_folder = store.list_with_delimiter(f"{path}/")["objects"]
            objects += [(path.rpartition("/")[2], meta) for meta in in_folder]
    except (exceptions.BaseError, FileNotFoundError) as error:
        raise _explain(url, error) from error
    entries = [
        Entry(str(meta["path"]), int(meta["size"]), str(meta["e_tag"] or ""), folder) for folder, meta in objects
    ]
    return _of_a_model(url, sorted(entries, key=lambda entry: entry.key))


def _module_folders(prefixes: Sequence[str]) -> list[str]:
    """Return the folders whose names begin with a number, as sentence-transformers name its modules (1_Pooling)."""
    paths = (prefix.rstrip("/") for prefix in prefixes)
    return sorted(path for path in paths if path.rpartition("/")[2][:1].isdecimal())[:_MOST_FOLDERS]


def _of_a_model(url: str, entries: Sequence[Entry]) -> list[Entry]:
    names = {entry.name for entry in entries}
    ggufs = [entry for entry in entries if entry.name.endswith(".gguf") and not entry.folder]
    if names & {"config.json", "adapter_config.json"}:
        patterns = (*SMALL, *WEIGHTS)
        return [entry for entry in entries if _matches(entry.name, patterns) and not _matches(entry.name, IGNORED)]
    models = first_parts(entry.name for entry in ggufs)
    if len(models) == 1:
        return ggufs
    if models:
        raise ModelLoadError(f"{url}: {len(models)} .gguf files; name the one to load, such as {url}/{models[0]}")
    there = f"there are {', '.join(sorted(names)[:5])}" if names else "there is nothing"
    raise ModelLoadError(f"{url}: a model needs a config.json, safetensors and a tokenizer, or a .gguf file; {there}")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _selected(entries: Sequence[Entry], weights: bool) -> list[Entry]:
    return [entry for entry in entries if weights or not _matches(entry.name, WEIGHTS)]


def _remember(home: Path, entries: Sequence[Entry]) -> Path:
    """Return the folder for this state of the prefix; the state is written down for when the store cannot be asked."""
    text = json.dumps([_noted(entry) for entry in entries])
    folder = home / hashlib.sha256(text.encode()).hexdigest()[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        listing = home / "listing.json"
        partial = incomplete_files.own(listing)
        partial.write_text(text)
        partial.replace(listing)
    except OSError as error:
        raise ModelLoadError(
            f"{home}: nothing can be stored there: {error.strerror}; set XDG_CACHE_HOME to another folder"
        ) from None
    return folder


def _noted(entry: Entry) -> dict[str, Any]:
    """Return an entry for a kept listing.

    One without a folder is as earlier versions kept it, so that files are not fetched again.
    """
    return {name: value for name, value in asdict(entry).items() if name != "folder" or value}


def _last_known(home: Path, unreachable: _UnreachableError) -> tuple[list[Entry], Path]:
    try:
        text = (home / "listing.json").read_text()
        return [Entry(**entry) for entry in json.loads(text)], home / hashlib.sha256(text.encode()).hexdigest()[:32]
    except (OSError, ValueError, TypeError):
        raise ModelLoadError(str(unreachable)) from unreachable


def _fetch_all(store: S3Store, url: str, entries: Sequence[Entry], folder: Path, report: Report) -> None:
    missing = sorted((entry for entry in entries if not is_complete(folder, entry)), key=lambda entry: entry.size)
    if not missing:
        return
    total = sum(entry.size for entry in missing)
    begun = sum(
        max(map(incomplete_files.size_of, incomplete_files.begun(folder / entry.name)), default=0) for entry in missing
    )
    check_room(url, folder, total - begun, "XDG_CACHE_HOME")
    report(DownloadProgress(0, total, f"{format_size(total)} to fetch"))
    files = ObjectFiles(store, folder, Counter(total, report))
    files.fetch(missing[0])  # the smallest: it shows whether this store's ETags can be trusted
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="s3") as pool:
        for _ in pool.map(files.fetch, missing[1:]):
            pass


def _fetch_header(store: S3Store, url: str, entry: Entry, folder: Path, report: Report) -> None:
    """Fetch the header of a GGUF file into a folder of its own."""
    header = folder / _HEADERS / entry.name
    if is_stored(header, entry.size):
        return
    report(DownloadProgress(note=f"reading the header of {url}"))
    files = ObjectFiles(store, folder, Counter(0, report))
    store_header(files.rest(entry, 0), entry.size, header, entry.key)


def _explain(url: str, error: Exception) -> ModelLoadError:
    """Return the error for a refusal, which the library shows by its text alone: status and the store's own code."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "AWS"
    status, code = (re.search(pattern, str(error)) for pattern in (r"status code: (\d+)", r"<Code>(\w+)</Code>"))
    not_there = code is None or code[1].startswith("NoSuch")  # an unknown access key is status 404 too at some stores
    if isinstance(error, FileNotFoundError) or (status and status[1] == "404" and not_there):
        return ModelLoadError(
            f"{url}: there is no such bucket or prefix at {endpoint}; check AWS_ENDPOINT_URL and AWS_REGION"
        )
    if status and status[1][0] in "34":
        return ModelLoadError(
            f"{url}: {endpoint} refuses ({code[1] if code else status[1]}); give AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (or an identity) that may list and read it, and the bucket's AWS_REGION"
        )
    return _UnreachableError(f"{url}: {endpoint} cannot be asked: {first_line(error)}")
