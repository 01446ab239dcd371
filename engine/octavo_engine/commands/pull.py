"""`octavo-engine pull`: downloading a model's files to this machine.

In a pod this command runs before the engine. `--check-memory` refuses a model that cannot fit before anything large is
downloaded; `--progress-port` shows the progress over HTTP; `--link` makes the files available at one fixed path. The
engine then needs neither network nor token, and loads the same files again after a restart.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from octavo_engine.commands.pull_progress import Progress, progress_lines, progress_port
from octavo_engine.config import EngineConfig
from octavo_engine.config.setting import Setting
from octavo_engine.config.sources import read_engine_config
from octavo_engine.engine.info import MemoryInfo
from octavo_engine.errors import AdapterNotFoundError, ConfigurationError, ModelLoadError
from octavo_engine.model.downloads.download import DownloadProgress, Report
from octavo_engine.model.lora.peft_config import CONFIG_FILE
from octavo_engine.model.source import ModelFiles, pull_model, resolve_adapter
from octavo_engine.process_setup.signals import ended_at_once
from octavo_engine.sizes import format_size


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Download a model or an adapter and print its path; OctavoError, with its exit code, if that fails."""
    config = read_engine_config(args, environ)
    progress = Progress(config.model)
    limit = Setting("size", "", minimum=1).parse("max-size", args.max_size) if args.max_size is not None else None
    if args.adapter and (args.check_memory or args.link is not None):
        raise ConfigurationError("--adapter cannot be combined with --check-memory or --link, which are for models")
    with ExitStack() as stack:
        stack.enter_context(ended_at_once())  # the next pull resumes the download
        if args.progress_port is not None:
            stack.enter_context(progress_port(progress, args.progress_port))
        stack.enter_context(progress_lines(progress))
        report = _limited(progress.report, config.model, limit)
        if args.adapter:
            place: Path | None = _adapter(config, report)
        else:
            files = _fetch(config, progress, report, args.check_memory)
            place = files.directory or files.gguf
    if place is None:
        raise ConfigurationError(f"{config.model} names no files")
    if args.link is not None:
        _link(place, args.link)
    sys.stdout.write(f"{place}\n")
    return 0


def _limited(report: Report, model: str, limit: int | None) -> Report:
    """Return `report` with a check that refuses a download of more than `limit` bytes before its first byte."""

    def judge(transfer: DownloadProgress) -> None:
        if limit is not None and transfer.total > limit:
            raise ModelLoadError(
                f"{model}: needs {format_size(transfer.total)} of the cache, which may hold {format_size(limit)} "
                "(--max-size; cache.size of an LLMService); raise it to more than that"
            )
        report(transfer)

    return judge


def _fetch(config: EngineConfig, progress: Progress, report: Report, check_memory: bool) -> ModelFiles:
    revision = config.revision
    if check_memory:
        small = pull_model(config.model, revision, report, weights=False)
        progress.memory = _memory(config, small)
        revision = small.commit or revision  # the weights of the same commit whose memory was checked
    return pull_model(config.model, revision, report)


def _adapter(config: EngineConfig, report: Report) -> Path:
    directory = resolve_adapter(config.model, config.revision, report)
    if not (directory / CONFIG_FILE).is_file():
        raise AdapterNotFoundError(
            f"{config.model}: there is no {CONFIG_FILE}, so this is not an adapter that PEFT saved"
        )
    return directory


def _memory(config: EngineConfig, small: ModelFiles) -> MemoryInfo:
    from octavo_engine.engine.startup.sizing import size_engine  # imports torch, which only --check-memory needs

    return size_engine(config, small, measure=False).memory_info()  # measuring compiles kernels: the engine does it


def _link(place: Path, link: Path) -> None:
    """Make `link` a symbolic link to `place`, replacing an older one atomically; ConfigurationError if that fails.

    Only its folder is resolved: a file in the hub's cache is a link to one whose name does not say which part it is.
    """
    new = link.with_name(f"{link.name}.{os.getpid()}")
    try:
        new.unlink(missing_ok=True)  # left by a container with the same process id that was killed before `replace`
        new.symlink_to(place.parent.resolve() / place.name)
        new.replace(link)
    except OSError as error:
        raise ConfigurationError(f"--link {link}: the link cannot be made: {error.strerror}") from None
