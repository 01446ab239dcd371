"""`octavo-operator`: run in a cluster; render, check, convert, crd and local without one."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from octavo_operator import __version__
from octavo_operator.api.crd import custom_resource_definition
from octavo_operator.api.engine_defaults import NO_DEFAULTS, EngineDefaults, parse_engine_defaults
from octavo_operator.api.files import inspect
from octavo_operator.api.manifest import ManifestError, dump, read
from octavo_operator.api.resource import LLMService
from octavo_operator.command_line import USAGE_ERROR, Parser, page_of, port, whole_number_within, with_written_output
from octavo_operator.convert import convert
from octavo_operator.dashboards import DASHBOARDS
from octavo_operator.help_examples import OPERATOR_EXAMPLES
from octavo_operator.render import (
    DEFAULT_METRICS_URL,
    DEFAULT_NAMESPACE,
    OPTIONAL_KINDS,
    RenderConfig,
    blocking,
    render,
    scaledobject,
    unsupported_fields,
)
from octavo_operator.render.pod_template_checks import pod_template_problems
from octavo_operator.render.scaler import bounds_in_force

DEFAULT_ENGINE_IMAGE = f"octavo-engine:{__version__}"
_EXAMPLES = """examples:
  octavo-operator check manifests/samples/*.yaml      what the API server would refuse, without a cluster
  octavo-operator render service.yaml                 the objects that the operator would create
  octavo-operator local service.yaml                  the same engine as a process on this machine
  octavo-operator convert deployment.yaml             an LLMService for what runs vLLM, or for KubeAI's Models

exit codes: 0 done; 2 usage, or input that was refused; local ends with the engine's code
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="octavo-operator",
        description="Octavo's operator. `run` and `metrics-api` are for a cluster, all other commands need none.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"octavo-operator {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, **page_of(text, OPERATOR_EXAMPLES[name]))

    _run_arguments(command("run", "watch LLMServices and reconcile them"))
    _metrics_arguments(command("metrics-api", "serve the pods' load to autoscalers as external metrics"))
    _render_arguments(command("render", "print the objects of an LLMService as YAML"))
    check = command("check", "validate LLMServices as the API server would")
    check.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="YAML, - for stdin; other objects are skipped"
    )
    convert = command("convert", "convert manifests of vLLM, KServe or KubeAI to LLMServices")
    convert.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="YAML with the objects to convert, - for stdin"
    )
    command("crd", "print the CustomResourceDefinition as YAML")
    dashboard = command("dashboard", "print a Grafana dashboard as JSON")
    dashboard.add_argument("name", choices=DASHBOARDS, help="all services, one service, or the capacity of the cluster")
    _local_arguments(command("local", "run an LLMService's engine as a process here"))
    return parser


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    _services_arguments(parser)
    _replica_arguments(parser)


def _services_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what decides which LLMServices are managed, and what their pods get."""
    _engine_image(parser)
    _metrics_url(parser, "")
    parser.add_argument("--namespace", action="append", default=[], help="watch only this namespace; repeatable")
    parser.add_argument(
        "--scale-directly",
        action="store_true",
        help="scale Deployments through /scale instead of making HorizontalPodAutoscalers, which ask the metrics API",
    )
    parser.add_argument(
        "--engine-defaults",
        type=_engine_defaults,
        default=NO_DEFAULTS,
        metavar="JSON",
        help="tolerations, runtimeClassName, imagePullSecrets, auth, networkPolicy and fixedUser of all engines"
        " (default: {})",
    )
    parser.add_argument(
        "--host-path",
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder of nodes that spec.cache.hostPath may name; repeatable (default: none)",
    )


def _replica_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a replica of the operator reports, for how long it waits, and whether it leads."""
    parser.add_argument(
        "--endpoint-slice-manager",
        type=_label_value,
        action="append",
        default=[],
        metavar="NAME",
        help="controller, such as a cluster mesh's, whose EndpointSlices may send a model's requests elsewhere, by"
        " their label endpointslice.kubernetes.io/managed-by; repeatable (default: none)",
    )
    parser.add_argument(
        "--node-wait-seconds",
        type=whole_number_within(1, 86_400),
        default=45,
        metavar="SECONDS",
        help="for how long a pod may find no node before its LLMService is Stalled; set more with a node autoscaler"
        " (default: 45)",
    )
    parser.add_argument(
        "--lease",
        type=_namespaced_name,
        metavar="NAMESPACE/NAME",
        help="the Lease that decides which replica leads (default: none, and this one always leads)",
    )
    parser.add_argument(
        "--health-port",
        type=port,
        default=8080,
        metavar="N",
        help="port of /healthz and /metrics; 0: none (default: 8080)",
    )
    _log_level(parser)


def _metrics_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--service",
        type=_namespaced_name,
        required=True,
        metavar="NAMESPACE/NAME",
        help="the Service through which the API server reaches --tls-port",
    )
    parser.add_argument(
        "--register",
        action="store_true",
        help="create the APIService of external metrics if there is none (default: use an existing one)",
    )
    parser.add_argument(
        "--tls-port", type=port, default=8443, metavar="N", help="port for the API server (default: 8443)"
    )
    parser.add_argument(
        "--port", type=port, default=8080, metavar="N", help="port for KEDA and of /healthz (default: 8080)"
    )
    _log_level(parser)


def _render_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser)
    _engine_image(parser)
    _metrics_url(parser, DEFAULT_METRICS_URL)
    parser.add_argument(
        "--operator-namespace",
        default=DEFAULT_NAMESPACE,
        metavar="NAMESPACE",
        help="namespace of the operator and the metrics API, which networkPolicy admits (default: %(default)s)",
    )
    parser.add_argument(
        "--with-kind",
        action="append",
        default=[],
        choices=OPTIONAL_KINDS,
        help="optional kind that the cluster has; with ScaledObject, KEDA serves external metrics too; repeatable",
    )


def _local_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser)
    parser.add_argument(
        "--port", type=port, default=8000, metavar="N", help="port on 127.0.0.1; 0: any free one (default: 8000)"
    )
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="folder of this machine for a volume of the pod (weights, api-keys, cache); repeatable",
    )


def _file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML with one LLMService, - for stdin")


def _log_level(parser: argparse.ArgumentParser) -> None:
    levels = ("debug", "info", "warning", "error")
    parser.add_argument(
        "--log-level", choices=levels, default="info", help="lowest level of messages that are logged (default: info)"
    )


def _namespaced_name(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return namespace, name


def _label_value(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be the value of a label")
    return text


def _engine_defaults(text: str) -> EngineDefaults:
    try:
        return parse_engine_defaults(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _engine_image(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine-image",
        default=DEFAULT_ENGINE_IMAGE,
        metavar="IMAGE",
        help="image of the engine where the spec names none (default: %(default)s)",
    )


def _metrics_url(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--metrics-url",
        default=default,
        metavar="URL",
        help="URL at which KEDA reaches the HTTP port of `octavo-operator metrics-api`; empty if that does not run"
        f" (default: {default or 'empty'})",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code: 0, or 2 for input that was refused."""
    return with_written_output("octavo-operator", lambda: _run_command(argv))


def _run_command(argv: Sequence[str] | None) -> int:
    arguments = build_parser().parse_args(argv)
    if arguments.command in ("run", "metrics-api"):
        return _run(arguments) if arguments.command == "run" else _metrics_api(arguments)
    if arguments.command in ("crd", "dashboard"):
        crd = arguments.command == "crd"
        sys.stdout.write(dump(custom_resource_definition()) if crd else DASHBOARDS[arguments.name].as_json())
        return 0
    if arguments.command in ("check", "convert"):
        check = arguments.command == "check"
        return max([_check(path) for path in arguments.files]) if check else _convert(arguments.files)
    service = _only_service(arguments.file)
    if service is None:
        return USAGE_ERROR
    if arguments.command == "render":
        kinds, now = frozenset(arguments.with_kind), datetime.now(UTC)
        config = RenderConfig(
            arguments.engine_image,
            kinds,
            metrics_url=arguments.metrics_url,
            others_answer=scaledobject.KIND in kinds,
            operator_namespace=arguments.operator_namespace,
            now=now,
        )
        return _render(service, config)
    return _local(service, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from octavo_operator.metrics_api.direct_scaling import DirectScaler
    from octavo_operator.reconcile.api_requests.history import HistoryLostError
    from octavo_operator.reconcile.lease import LeaseLostError
    from octavo_operator.reconcile.operator import OperatorOptions, run
    from octavo_operator.reconcile.watching.watches import WatchesHangError

    _log(arguments.log_level)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it logs every event
    options = OperatorOptions(
        arguments.engine_image,
        arguments.namespace,
        arguments.health_port,
        arguments.lease,
        arguments.metrics_url,
        frozenset(arguments.host_path),
        arguments.engine_defaults,
        DirectScaler if arguments.scale_directly else None,
        frozenset(arguments.endpoint_slice_manager),
        arguments.node_wait_seconds,
    )
    code, loop = 0, asyncio.new_event_loop()
    try:
        loop.run_until_complete(run(options))
    except (HistoryLostError, LeaseLostError, WatchesHangError) as error:
        logging.getLogger(__name__).error("exiting, to be restarted: %s", error)
        code = 1
    if asyncio.all_tasks(loop):  # they have not ended though they were cancelled: asyncio.run would wait for them
        logging.shutdown()
        os._exit(code)
    loop.close()
    return code


def _metrics_api(arguments: argparse.Namespace) -> int:
    from octavo_operator.metrics_api.front_proxy import NoAggregationError
    from octavo_operator.metrics_api.serve import AuthorityChangedError, MetricsApiOptions, run
    from octavo_operator.reconcile.api_requests.api_error import ApiError

    _log(arguments.log_level)
    try:
        namespace, service = arguments.service
        asyncio.run(run(MetricsApiOptions(namespace, service, arguments.tls_port, arguments.port, arguments.register)))
    except (NoAggregationError, ApiError) as error:
        logging.getLogger(__name__).error("cannot serve metrics: %s", error)
        return 1
    except AuthorityChangedError as error:
        logging.getLogger(__name__).warning("exiting, to be restarted: %s", error)
        return 1
    return 0


def _log(level: str) -> None:
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def _check(path: Path) -> int:
    inspection = inspect(path)
    for line in inspection.skipped:
        _say(f"{path}: skipped: {line}")
    for service in inspection.services:
        if problems := pod_template_problems(service):
            inspection.problems.extend(map(str, problems))
            continue
        sys.stdout.write(f"{path}: LLMService {service.name} is valid\n")
        for note in _notes(service):
            _say(f"{path}: note: {note}")
    for problem in inspection.problems:
        _say(f"{path}: {problem}")
    return USAGE_ERROR if inspection.problems else 0


def _convert(files: Sequence[Path]) -> int:
    """Read all files before any is converted, since an autoscaler may be in another file than its workload."""
    documents: list[dict[str, Any]] = []
    for path in files:
        try:
            documents += [document.content for document in read(path)]
        except (OSError, ManifestError) as error:
            _say(f"{path}: {getattr(error, 'strerror', None) or error}")
            return USAGE_ERROR
    found = convert(documents)
    if found.manifests:
        sys.stdout.write(dump(*found.manifests))
    for line in (*found.notes, *found.problems):
        _say(line)
    return USAGE_ERROR if found.problems else 0


def _notes(service: LLMService) -> list[str]:
    """Return remarks about a valid LLMService that may not do what its author expects."""
    in_force = bounds_in_force(service.spec, datetime.now(UTC))
    return [*map(str, unsupported_fields(service.spec)), *(in_force.ignored if in_force else ())]


def _only_service(path: Path) -> LLMService | None:
    inspection = inspect(path)
    problems = inspection.problems
    if not problems and len(inspection.services) != 1:
        problems = [f"holds {len(inspection.services)} LLMServices; this command takes a file with one"]
    for problem in problems:
        _say(f"{path}: {problem}")
    return None if problems else inspection.services[0]


def _render(service: LLMService, config: RenderConfig) -> int:
    for note in _notes(service):
        _say(f"note: {note}")
    if blocking(service.spec):
        return USAGE_ERROR
    sys.stdout.write(dump(*render(service, config)))
    return 0


def _local(service: LLMService, arguments: argparse.Namespace) -> int:
    from octavo_operator.local.errors import LocalError
    from octavo_operator.local.main import main as run
    from octavo_operator.local.volumes import parse_volumes

    try:
        return run(service, arguments.port, parse_volumes(arguments.volume))
    except LocalError as error:
        _say(f"octavo-operator local: {error}")
        return error.exit_code


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
