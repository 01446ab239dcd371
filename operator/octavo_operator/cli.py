"""`octavo-operator`: run in a cluster; render, check, crd and local without one."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from octavo_operator import __version__
from octavo_operator.api.crd import custom_resource_definition
from octavo_operator.api.files import inspect
from octavo_operator.api.manifest import dump
from octavo_operator.api.resource import LLMService
from octavo_operator.render import RenderConfig, not_yet_acted_on, render

DEFAULT_ENGINE_IMAGE = f"octavo-engine:{__version__}"
USAGE_ERROR = 2


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="octavo-operator", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"octavo-operator {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="watch LLMServices and keep them as they should be", allow_abbrev=False)
    _engine_image(run)
    run.add_argument("--namespace", action="append", default=[], help="watch only this namespace; repeatable")
    run.add_argument("--health-port", type=int, default=8080, help="port of /healthz; 0: none (default: 8080)")
    run.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")

    show = commands.add_parser("render", help="print the objects of an LLMService as YAML", allow_abbrev=False)
    show.add_argument("file", type=Path, metavar="FILE")
    _engine_image(show)

    check = commands.add_parser("check", help="judge LLMServices as the API server would", allow_abbrev=False)
    check.add_argument("files", type=Path, nargs="+", metavar="FILE")

    commands.add_parser("crd", help="print the CustomResourceDefinition as YAML", allow_abbrev=False)

    local = commands.add_parser("local", help="run an LLMService's engine as a process here", allow_abbrev=False)
    local.add_argument("file", type=Path, metavar="FILE")
    local.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1; 0: any free one (default: 8000)")
    local.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="folder of this machine for a volume of the pod (weights, api-keys, cache); repeatable",
    )
    return parser


def _engine_image(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine-image",
        default=DEFAULT_ENGINE_IMAGE,
        metavar="IMAGE",
        help="image of the engine where the spec names none (default: %(default)s)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code: 0, or 2 for input that was refused."""
    arguments = build_parser().parse_args(argv)
    if arguments.command == "run":
        return _run(arguments)
    if arguments.command == "crd":
        sys.stdout.write(dump(custom_resource_definition()))
        return 0
    if arguments.command == "check":
        return max([_check(path) for path in arguments.files])
    service = _only_service(arguments.file)
    if service is None:
        return USAGE_ERROR
    if arguments.command == "render":
        return _render(service, arguments.engine_image)
    return _local(service, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from octavo_operator.reconcile.operator import OperatorOptions, run

    logging.basicConfig(
        level=arguments.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it tells of every event
    options = OperatorOptions(arguments.engine_image, arguments.namespace, arguments.health_port)
    asyncio.run(run(options))
    return 0


def _check(path: Path) -> int:
    inspection = inspect(path)
    for line in inspection.skipped:
        _say(f"{path}: skipped: {line}")
    for service in inspection.services:
        sys.stdout.write(f"{path}: LLMService {service.name} is valid\n")
        for row in not_yet_acted_on(service.spec):
            _say(f"{path}: note: {row}")
    for problem in inspection.problems:
        _say(f"{path}: {problem}")
    return USAGE_ERROR if inspection.problems else 0


def _only_service(path: Path) -> LLMService | None:
    inspection = inspect(path)
    problems = inspection.problems
    if not problems and len(inspection.services) != 1:
        problems = [f"holds {len(inspection.services)} LLMServices; this command takes a file with one"]
    for problem in problems:
        _say(f"{path}: {problem}")
    return None if problems else inspection.services[0]


def _render(service: LLMService, engine_image: str) -> int:
    pending = not_yet_acted_on(service.spec)
    for row in pending:
        _say(f"note: {row}")
    if any(row.blocks for row in pending):
        return USAGE_ERROR
    sys.stdout.write(dump(*render(service, RenderConfig(engine_image))))
    return 0


def _local(service: LLMService, arguments: argparse.Namespace) -> int:
    from octavo_operator import local

    try:
        return local.main(service, arguments.port, local.parse_volumes(arguments.volume))
    except local.LocalError as error:
        _say(f"octavo-operator local: {error}")
        return error.exit_code


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
