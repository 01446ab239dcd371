"""The command line of `octavo-engine`: parsers of its commands. Every setting of config/ is a flag."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from octavo_client.argument_types import whole_number_within
from octavo_client.errors import ClientError
from octavo_engine import __version__
from octavo_engine.commands.help_examples import EXAMPLES, FIRST_STEPS
from octavo_engine.commands.written_output import with_written_output
from octavo_engine.config import EngineConfig, ServerConfig
from octavo_engine.config.setting import default_of, flag_name, settings_of
from octavo_engine.config.sources import read_engine_config, read_server_config, unknown_variables
from octavo_engine.errors import ConfigurationError, OctavoError
from octavo_engine.process_setup.imports import lasting_imports
from octavo_engine.process_setup.openmp import sleep_soon
from octavo_engine.process_setup.signals import ended_at_once, ended_quietly
from octavo_engine.sizes import format_size

_MODEL_HELP = (
    "a Hugging Face id (owner/name:Q4_K_M names one of its .gguf files), a directory in its layout, a .gguf file, "
    "s3://bucket/prefix, or smollm2 (the demo model)"
)
_MANY_FLAGS = {
    "serve": "MODEL",
    "generate": "MODEL --input FILE --output FILE",
    "plan": "MODEL",
    "pull": "MODEL",
    "bench": "URL",
}
"""Required arguments of the commands whose usage line would list a screen full of flags; the help explains these."""

_CLIENTS = {
    "chat": "talk to a running server",
    "bench": "measure a running server",
    "compare": "compare two files of bench --json, figure by figure",
    "top": "show the load of running servers",
}
"""The commands that are modules of `octavo_client`, with what they do."""

_port = whole_number_within(0, 65_535)


class _Page(argparse.RawDescriptionHelpFormatter):
    """A help page whose lines end between words: a flag such as --max-num-seqs can be searched for and copied."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence instead of a page of usage, with a suggestion for a mistyped name."""

    def error(self, message: str) -> NoReturn:
        see = " See" if message.endswith("?") else "; see"
        self.exit(ConfigurationError.exit_code, f"{self.prog}: {message}{see} {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            close = difflib.get_close_matches(value, action.choices, 1)
            self.error(f"there is no command {value}" + (f", did you mean {close[0]}?" if close else ""))
        super()._check_value(action, value)

    def suggest(self, unknown: Sequence[str]) -> NoReturn:
        flags = [flag for action in self._actions for flag in action.option_strings if action.dest != "help"]
        name = unknown[0].split("=")[0]
        if name == "--model" and any(action.dest == "model" for action in self._actions):
            self.error(f"the model is given without --model, as in {self.prog} smollm2")
        close = difflib.get_close_matches(name, flags, 1)
        kind = "flag" if name.startswith("-") else "argument"
        self.error(f"unknown {kind} {name}" + (f", did you mean {close[0]}?" if close else ""))


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of `octavo-engine` with all commands and flags.

    With `only`, other commands of `octavo_client` have no flags: to import what they need takes longer than all the
    rest of a command such as `models`.
    """
    parser = _Parser(
        prog="octavo-engine",
        description="Octavo's engine: serves a language model.",
        epilog=FIRST_STEPS,
        formatter_class=_Page,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, does: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=does, allow_abbrev=False, formatter_class=_Page)
        made.description, made.epilog = f"{does[0].upper()}{does[1:]}.", f"examples:{EXAMPLES[name]}"
        if name in _MANY_FLAGS:
            made.usage = f"%(prog)s {_MANY_FLAGS[name]} [FLAG ...]"
        return made

    serve = command("serve", "serve MODEL over an OpenAI-compatible API")
    _add_model(serve)
    _add_settings(serve, "engine", EngineConfig)
    _add_settings(serve, "server", ServerConfig)
    _add_generate(command("generate", "answer a file of prompts, offline"))
    _add_plan(command("plan", "print the memory that MODEL needs and whether it fits, without loading it"))
    _add_pull(command("pull", "download MODEL and stop"))
    _add_adapters(command("adapters", "fetch LoRA adapters for a server"))
    models = command("models", "list the supported model families and their features")
    models.add_argument("--json", action="store_true", help="print a JSON list")
    _add_doctor(command("doctor", "check whether this machine can serve models"))
    for name, does in _CLIENTS.items():
        client = command(name, does)
        if only in (None, name):
            _client(name).add_arguments(client)
    completion = command("completion", "print a shell's completion script")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    return parser


def _add_generate(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("--input", required=True, type=Path, metavar="FILE", help="JSON lines with prompt or messages")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="JSON lines; prompts with a line here are skipped"
    )
    _add_settings(parser, "engine", EngineConfig)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument(
        "--gpu-memory",
        metavar="SIZE",
        help="memory of one GPU, as in 80GiB (default: common GPUs, side by side; with --device cpu, this machine)",
    )
    _add_settings(parser, "engine", EngineConfig)


def _add_pull(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    parser.add_argument("--adapter", action="store_true", help="MODEL is a LoRA adapter, as PEFT saves it")
    parser.add_argument("--link", type=Path, metavar="PATH", help="make PATH a link to what was downloaded")
    parser.add_argument(
        "--check-memory", action="store_true", help="exit with 4 if MODEL does not fit here with the settings below"
    )
    parser.add_argument("--max-size", metavar="SIZE", help="exit with 3 if the download is larger than this")
    parser.add_argument(
        "--progress-port", type=_port, metavar="N", help="answer /health/startup and /metrics there while downloading"
    )
    _add_settings(parser, "engine", EngineConfig)


def _add_adapters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", required=True, type=Path, metavar="FILE", help="JSON list of adapters to fetch")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="--lora-modules-file of the server, kept up to date"
    )
    parser.add_argument(
        "--credentials",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder of credentials, in files SECRET/KEY",
    )
    parser.add_argument("--max-size", metavar="SIZE", help="refuse an adapter that is larger")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=_port, default=8000, metavar="N", help="port that serve would use (default: 8000)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=_MODEL_HELP)


def _add_settings(parser: argparse.ArgumentParser, title: str, config: type) -> None:
    if title == "engine":
        parser.add_argument("--config", type=Path, metavar="FILE", help="YAML whose keys are these flags' names")
    group = parser.add_argument_group(f"{title} (each flag is also OCTAVO_<NAME> in the environment)")
    for field, known in settings_of(config):
        default = default_of(field)
        shown = format_size(default) if known.kind == "size" and default else default
        text = known.help + (f" (default: {shown})" if default not in (None, [], False) else "")
        kwargs: dict[str, Any] = {"dest": field.name, "default": None, "help": text.replace("%", "%%")}
        if known.kind == "bool":
            kwargs["action"] = argparse.BooleanOptionalAction
        else:
            kwargs["metavar"] = known.metavar or ("|".join(map(str, known.choices)) if known.choices else "N")
            if known.repeated:
                # vLLM's --lora-modules takes several values; other lists take one a flag, as MODEL may follow them.
                kwargs |= {"action": "extend", "nargs": "+"} if field.name.startswith("lora_") else {"action": "append"}
        group.add_argument(f"--{flag_name(field.name)}", **kwargs)


def _warn_of_unknown_variables(command: str) -> None:
    """Write a warning about each `OCTAVO_…` variable without effect: a misspelled name would be ignored silently.

    The clients' OCTAVO_API_KEY is one of these for `serve`, which it does not protect.
    """
    for name, nearest in unknown_variables(os.environ):
        from octavo_client.api import KEY_VARIABLE  # takes long, and there is hardly ever such a variable

        if name != KEY_VARIABLE or command == "serve":
            hint = f"; did you mean {nearest}?" if nearest else ""
            sys.stderr.write(f"octavo-engine: warning: {name} has no effect on {command}{hint}\n")


def _serve(args: argparse.Namespace) -> int:
    with ended_quietly():
        with lasting_imports():
            from octavo_engine.server.run import serve

        sleep_soon(os.environ)
        return serve(read_engine_config(args, os.environ), read_server_config(args, os.environ))


def _generate(args: argparse.Namespace) -> int:
    try:
        if not args.input.is_fifo():  # a pipe can be opened once only
            args.input.open("rb").close()  # before an import of seconds
    except OSError as error:
        raise ConfigurationError(f"--input {args.input} cannot be read: {error.strerror}") from None
    sleep_soon(os.environ)
    with ended_at_once(f"{args.output}: interrupted; the same command goes on with the prompts that lack an answer"):
        from octavo_engine.commands.generate import run

        return run(read_engine_config(args, os.environ), args.input, args.output)


def _plan(args: argparse.Namespace) -> int:
    from octavo_engine.commands.plan import run

    return run(args, os.environ)


def _models(args: argparse.Namespace) -> int:
    from octavo_engine.commands.models import run

    return run(as_json=args.json)


def _doctor(args: argparse.Namespace) -> int:
    from octavo_engine.commands.doctor import run

    return run(args.port, args.json)


def _pull(args: argparse.Namespace) -> int:
    from octavo_engine.commands.pull import run

    return run(args, os.environ)


def _adapters(args: argparse.Namespace) -> int:
    from octavo_engine.commands.adapters import run

    return run(args)


def _client(name: str) -> Any:
    """Return the module of a command of `octavo_client`, which has `add_arguments` and `run`."""
    return import_module(f"octavo_client.{name}")


def _completion(args: argparse.Namespace) -> int:
    import shtab

    sys.stdout.write(shtab.complete(build_parser(), shell=args.shell) + "\n")
    return 0


_COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "serve": _serve,
    "generate": _generate,
    "plan": _plan,
    "models": _models,
    "doctor": _doctor,
    "pull": _pull,
    "adapters": _adapters,
    "completion": _completion,
    **{name: lambda args: _client(args.command).run(args) for name in _CLIENTS},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of `octavo-engine` and return its exit code, which is the error class's if it fails."""
    return with_written_output("octavo-engine", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(words[0] if words else "")
    if not words:
        parser.print_help(sys.stderr)
        return ConfigurationError.exit_code
    if words[0].startswith("--") and words[0] not in ("--help", "--version"):
        parser.error(f"flags come after the command, as in octavo-engine serve smollm2 {words[0]}")
    args, unknown = parser.parse_known_args(words)
    if unknown:
        chosen = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices[args.command]
        chosen.suggest(unknown)
    if "config" in args:  # a command with settings
        _warn_of_unknown_variables(args.command)
    try:
        return _COMMANDS[args.command](args)
    except (OctavoError, ClientError) as error:
        sys.stderr.write(f"octavo-engine: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
