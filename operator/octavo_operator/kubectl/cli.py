"""`kubectl octavo`, a plugin of kubectl: status, why, top, logs, chat and run."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo_operator import __version__
from octavo_operator.command_line import USAGE_ERROR, Parser, page_of, whole_number_within, with_written_output
from octavo_operator.help_examples import KUBECTL_EXAMPLES
from octavo_operator.kubectl.client import NO_CRD, Kubectl, KubectlError
from octavo_operator.kubectl.collect import engine_pods, facts_of, has_started, pod_readings
from octavo_operator.kubectl.forward import forwarded
from octavo_operator.kubectl.run import ProgressWriter, manifest, wait_until_ready
from octavo_operator.kubectl.secret_key import secret_key
from octavo_operator.kubectl.status import replicas_sentence, status_table
from octavo_operator.kubectl.top import top_table
from octavo_operator.kubectl.why import Facts, obstacles, report

IN_THE_WAY = 1
_SERVICES = "llmservices.octavo.dev"
_SLOW_SECONDS = 5.0
_EXAMPLES = """examples:
  kubectl octavo status -A              all LLMServices, with the reason if one is not ready
  kubectl octavo why llama-8b           what keeps it from serving or scaling
  kubectl octavo top                    queue, KV cache, tokens/s and time to first token by service
  kubectl octavo logs llama-8b -f       the engines' logs
  kubectl octavo run smollm2            create an LLMService, follow its start, print its first answer

exit codes: 0 done; 1 something keeps the service from serving or scaling; 2 usage, or the cluster cannot be read
"""


_AddCommand = Callable[[str, str], argparse.ArgumentParser]
"""Adds a command of this name, which does what the text says."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="kubectl octavo",
        description="Shows the state of LLMServices, and what keeps them from serving.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kubectl-octavo {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, **page_of(text, KUBECTL_EXAMPLES[name]))
        made.add_argument("-n", "--namespace", help="namespace (default: that of the context)")
        made.add_argument("--context", help="context of the kubeconfig (default: its current one)")
        made.add_argument("--kubeconfig", metavar="FILE", help="the kubeconfig (default: as kubectl finds it)")
        return made

    _reading_commands(command)
    logs = command("logs", "print the logs of an LLMService's engines")
    logs.add_argument("name", metavar="NAME", help="name of the LLMService")
    logs.add_argument("-f", "--follow", action="store_true", help="print new lines as they are written")
    logs.add_argument("--previous", action="store_true", help="logs of the containers before their last restart")
    lines = whole_number_within(-1, 1_000_000_000)
    logs.add_argument("--tail", type=lines, default=100, metavar="N", help="lines of each pod; -1: all (default: 100)")
    _talking_commands(command)
    return parser


def _reading_commands(command: _AddCommand) -> None:
    status = command("status", "show all LLMServices, or one, with the reason if one is not ready")
    top = command("top", "show queue, KV cache, tokens/s and time to first token by service")
    for made in (status, top):
        made.add_argument("name", nargs="?", metavar="NAME", help="name of the LLMService (default: all)")
        made.add_argument("-A", "--all-namespaces", action="store_true", help="look into all namespaces")
    top.add_argument("--seconds", type=_seconds, default=5.0, metavar="S", help="seconds to measure for (default: 5)")
    why = command("why", "show everything that keeps an LLMService from serving or scaling")
    why.add_argument("name", metavar="NAME", help="name of the LLMService")


def _talking_commands(command: _AddCommand) -> None:
    chat = command("chat", "talk to an LLMService, through a port that kubectl forwards")
    chat.add_argument("name", metavar="NAME", help="name of the LLMService")
    chat.add_argument(
        "--temperature", metavar="T", help="0: always the likeliest word (default: the server's, usually 1)"
    )
    run = command("run", "create an LLMService, follow its start, print its first answer")
    _run_arguments(run)
    for made in (chat, run):
        made.add_argument(
            "--api-key-secret",
            metavar="SECRET[/ENTRY]",
            help="Secret with the service's API keys; ENTRY is needed where it has several (default: OCTAVO_API_KEY of "
            "the environment)",
        )


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="smollm2 (the demo model), or a Hugging Face id, OWNER/NAME")
    parser.add_argument("--name", help="name of the LLMService (default: from the model's: qwen3-8b)")
    parser.add_argument(
        "--gpus",
        type=whole_number_within(0, 64),
        metavar="N",
        help="GPUs per replica (default: 1; 0 for smollm2)",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=1800.0,
        metavar="S",
        help="seconds to wait until it is ready (default: 1800)",
    )
    parser.add_argument(
        "--prompt", default="Name the capital of France.", help="what the model is asked first (default: %(default)s)"
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 86,400")
    return value


def _kubectl(arguments: argparse.Namespace) -> Kubectl:
    given = {name: getattr(arguments, name) for name in ("namespace", "context", "kubeconfig")}
    return Kubectl([f"--{name}={value}" for name, value in given.items() if value])


def _scope(arguments: argparse.Namespace) -> list[str]:
    return ["--all-namespaces"] if arguments.all_namespaces else []


def _check_scope(arguments: argparse.Namespace) -> None:
    if arguments.name and arguments.all_namespaces:
        raise KubectlError("an LLMService is named within one namespace: give its name or --all-namespaces, not both")


def _status(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    _check_scope(arguments)
    if arguments.name:
        sys.stdout.write(status_table([kubectl.get(_SERVICES, arguments.name)]))
        return 0
    services = kubectl.items(_SERVICES, *_scope(arguments))
    if not services:
        sys.stderr.write(f"no LLMServices found{_where(kubectl, arguments)}\n")
        return 0
    sys.stdout.write(status_table(services))
    return 0


def _where(kubectl: Kubectl, arguments: argparse.Namespace) -> str:
    """Return where nothing was found; KubectlError if the namespace that was given does not exist."""
    if arguments.all_namespaces:
        return " in this cluster"
    if arguments.namespace is None:
        return " in the context's namespace; -A looks into all"
    try:
        kubectl.get("namespace", arguments.namespace)
    except KubectlError as error:
        if "(NotFound)" in str(error):  # another error, such as a missing right, says nothing about it
            raise
    return f" in the namespace {arguments.namespace}; -A looks into all"


def _check_installed(kubectl: Kubectl, arguments: argparse.Namespace) -> None:
    """Raise KubectlError if the cluster knows no LLMServices; another error, such as a missing right, says nothing."""
    try:
        kubectl.items(_SERVICES, *_scope(arguments))
    except KubectlError as error:
        if NO_CRD in str(error):
            raise


def _facts(kubectl: Kubectl, name: str) -> Facts:
    """Return all that `why` looks at; if the cluster is slow, say that it is."""
    notice = threading.Timer(_SLOW_SECONDS, sys.stderr.write, ["the cluster is slow to answer; still reading\n"])
    notice.start()
    try:
        return facts_of(kubectl, name)
    finally:
        notice.cancel()


def _why(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    facts = _facts(kubectl, arguments.name)
    found = obstacles(facts)
    sys.stdout.write(report(facts, found))
    return IN_THE_WAY if found else 0


def _top(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    _check_scope(arguments)
    if arguments.name:
        pods = _pods_of(kubectl, arguments.name)
    else:
        pods = kubectl.items("pods", f"--selector={engine_pods()}", *_scope(arguments))
    if not pods:
        _check_installed(kubectl, arguments)
        sys.stderr.write(f"no pods of LLMServices found{_where(kubectl, arguments)}\n")
        return 0
    readings = pod_readings(kubectl, pods, arguments.seconds)
    sys.stdout.write(top_table(readings))
    if any(None in each for each in readings.values()):
        sys.stderr.write("some pods gave no metrics: they do not serve yet, or you have no right to get pods/proxy\n")
    return 0


def _pods_of(kubectl: Kubectl, name: str) -> list[dict[str, Any]]:
    """Return the pods of an LLMService. KubectlError: there is none, or no such LLMService."""
    pods = kubectl.items("pods", f"--selector={engine_pods(name)}")
    if not pods:
        raise KubectlError(_not_serving(kubectl.get(_SERVICES, name), "has no pods"))
    return pods


def _not_serving(service: Mapping[str, Any], what: str) -> str:
    name = service["metadata"]["name"]
    return f"{name} {what}: {replicas_sentence(service)}; why: kubectl octavo why {name}"


def _logs(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    if not any(has_started(pod) for pod in _pods_of(kubectl, arguments.name)):
        service = kubectl.get(_SERVICES, arguments.name)
        raise KubectlError(_not_serving(service, "has no logs, as no container has started"))
    flags = [f"--{name}" for name in ("follow", "previous") if getattr(arguments, name)]
    selector = f"--selector={engine_pods(arguments.name)}"
    return subprocess.call(
        # Containers that have no log yet, as engines while their model is fetched, do not hide the others' logs.
        kubectl.command(
            "logs", selector, "--all-containers", "--ignore-errors", "--prefix", f"--tail={arguments.tail}", *flags
        )
    )


def _chat(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    flags = [] if arguments.temperature is None else [f"--temperature={arguments.temperature}"]
    service = kubectl.get(_SERVICES, arguments.name)
    if not (service.get("status") or {}).get("readyReplicas"):
        raise KubectlError(_not_serving(service, "does not serve"))
    with forwarded(kubectl, arguments.name) as url:
        return subprocess.call([_engine(), "chat", *flags, url], env=_with_key(kubectl, arguments))


def _run(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    environment = _with_key(kubectl, arguments)  # before anything is made, as the Secret may not be there
    made = manifest(arguments.model, arguments.name, arguments.gpus)
    name = made["metadata"]["name"]
    sys.stderr.write(kubectl.output("create", "--filename=-", stdin=json.dumps(made)))
    if not wait_until_ready(lambda: kubectl.get(_SERVICES, name), ProgressWriter(sys.stderr), arguments.timeout):
        facts = _facts(kubectl, name)
        sys.stdout.write(report(facts, obstacles(facts)))
        return IN_THE_WAY
    with forwarded(kubectl, name) as url:
        code = subprocess.run(
            [_engine(), "chat", "--temperature=0", url],
            input=arguments.prompt + "\n",
            text=True,
            check=False,
            env=environment,
        ).returncode
    sys.stderr.write(f"to continue: kubectl octavo chat {name}; to delete it: kubectl delete llms {name}\n")
    return code


def _with_key(kubectl: Kubectl, arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment of a chat.

    The key is in it and not in the command, which every user of the machine sees.
    """
    given: str | None = arguments.api_key_secret
    return {**os.environ, **({} if given is None else {"OCTAVO_API_KEY": secret_key(kubectl, given)})}


def _engine() -> str:
    beside = Path(sys.executable).parent / "octavo-engine"
    found = str(beside) if beside.exists() else shutil.which("octavo-engine")
    if found is None:
        raise KubectlError(
            "octavo-engine, which has the chat, is not installed: in a checkout of Octavo, make setup or pip install "
            "'.[engine]'"
        )
    return found


_COMMANDS: Mapping[str, Callable[[Kubectl, argparse.Namespace], int]] = {
    "status": _status,
    "why": _why,
    "top": _top,
    "logs": _logs,
    "chat": _chat,
    "run": _run,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `kubectl-octavo`, which kubectl finds on PATH as `kubectl octavo`; returns the exit code."""
    return with_written_output("kubectl octavo", lambda: _run_command(argv))


def _run_command(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:  # as kubectl does
        parser.print_help()
        return 0
    try:
        return _COMMANDS[arguments.command](_kubectl(arguments), arguments)
    except KubectlError as error:
        sys.stderr.write(f"kubectl octavo: {error}\n")
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
