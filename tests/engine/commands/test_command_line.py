"""The command line: help, completion, and one sentence for each mistake; imports of the programs that it starts."""

from __future__ import annotations

import gc
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo_engine import cli
from octavo_engine import program as engine_program
from octavo_engine.commands.help_examples import EXAMPLES
from octavo_engine.commands.written_output import with_written_output
from octavo_engine.process_setup.imports import lasting_imports
from octavo_engine.process_setup.signals import ended_at_once
from octavo_operator import cli as operator_cli
from octavo_operator import program as operator_program

COMMANDS = sorted(cli._COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_that_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    page, _, shown = capsys.readouterr().out.partition("examples:\n")
    assert re.search(r"^[A-Z][^\n]*\.$", page, re.MULTILINE)
    lines = [re.split(r" {2,}| > ", line.strip())[0] for line in shown.splitlines() if line.strip()]
    assert lines and any(line.startswith(f"octavo-engine {command}") for line in lines)
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "octavo-engine"
        _, unknown = cli.build_parser().parse_known_args(words)
        assert unknown == [], line
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("serve", "completion", "max-model-len", "find-saturation"):
        assert word in script
    if (program := shutil.which(shell)) is not None:
        done = subprocess.run([program, "-n", "/dev/stdin"], input=script, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_commands_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["completion", "bash"])
    script = capsys.readouterr().out
    function = re.search(r"complete .*-F (\S+) octavo-engine", script)
    assert function is not None
    for words, wanted in ((["octavo-engine", "ser"], "serve"), (["octavo-engine", "top", "--inter"], "--interval")):
        asked = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; {function[1]}; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", f"{script}\n{asked}"], text=True, capture_output=True, check=True)
        assert wanted in done.stdout.split()


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code, and the only line that was written."""
    try:
        code = cli.main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    written = capsys.readouterr()
    [line] = (written.out + written.err).splitlines()
    return code, line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["srve"], "there is no command srve, did you mean serve?"),
        (["xyzzy"], "there is no command xyzzy; see octavo-engine --help"),
        (["--max-num-seqs", "4", "serve", "m"], "flags come after the command, as in octavo-engine serve smollm2"),
        (["serve", "m", "--max-num-seq", "4"], "unknown flag --max-num-seq, did you mean --max-num-seqs?"),
        (["top", "http://x", "--interval", "soon"], "--interval: 'soon' is not a number from 0.1 to 3,600"),
        (["top", "http://x", "--count", "0"], "--count: '0' is not a whole number from 1 to"),
        (["top", "x:8000"], "a server's URL begins with http:// or https://; try http://x:8000"),
        (["chat", "x:8000"], "a server's URL begins with http:// or https://; try http://x:8000"),
        (["top", "http://x:y"], "http://x:y: not a URL of a server, such as http://localhost:8000: Invalid port: 'y'"),
        (["chat", "ftp://x:8000"], "a server's URL begins with http:// or https://; try http://x:8000"),
        (["generate", "m", "--input", "/dev/null", "--output", "/tmp/none"], "--input /dev/null holds no prompts"),
        (["plan", "m", "--gpu-memory", "80"], "--gpu-memory 80 is 80 B; give a unit, as in 80GiB"),
        (["chat", "http://"], "http://: not a URL of a server, such as http://localhost:8000: it names no host"),
        (["chat", "http://x", "--temperature", "hot"], "--temperature: 'hot' is not a number from 0 to 2"),
        (["chat", "http://x", "--api-key-file", "/none"], "--api-key-file /none: cannot be read: No such file or dir"),
        (["bench", "x:8000"], "a server's URL begins with http:// or https://; try http://x:8000"),
        (["bench", "http://x", "--concurrency", "8,0"], "--concurrency: '0' is not a whole number from 1 to 4,096"),
        (["bench", "http://x", "--rate", "fast"], "--rate: 'fast' is not a number from 0.001 to 10,000"),
        (["bench", "http://x", "--dataset", "/none"], "--dataset /none: cannot be read: No such file or directory"),
        (["compare", "/none", "/none"], "/none: cannot be read: No such file or directory"),
        (["generate", "m", "--input", "/none", "--output", "x"], "--input /none cannot be read: No such file or dir"),
        (["doctor", "--hep"], "unknown flag --hep; see octavo-engine doctor --help"),
        (["serve", "--model", "x"], "the model is given without --model, as in octavo-engine serve smollm2; see"),
        (["pull", "m", "--revison", "x"], "unknown flag --revison, did you mean --revision? See octavo-engine pull"),
    ],
)
def test_what_is_typed_wrong_gets_one_line_that_says_what_may_be_typed(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    code, line = said(capsys, *words)
    assert code == 2 and says in line and "Errno" not in line


@pytest.mark.parametrize(
    ("main", "words", "program"),
    [
        (cli.main, ["completion", "bash"], "octavo-engine"),
        (operator_cli.main, ["dashboard", "fleet"], "octavo-operator"),
    ],
)
def test_output_that_cannot_be_written_ends_the_program_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, main: Any, words: list[str], program: str
) -> None:
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert main(words) == 1
    assert capsys.readouterr().err == f"{program}: the output cannot be written: No space left on device\n"
    reading, writing = os.pipe()
    os.close(reading)  # as after `| head`
    with os.fdopen(writing, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        assert main(words) == 1
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)  # as Python does where the shell closed it
        assert main(words) == 0
        sys.stdout.close()
    assert capsys.readouterr().err == ""


def test_a_locale_without_a_letter_does_not_end_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="latin-1") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with_written_output("octavo-engine", lambda: out.write("Paris ✓"))
    assert (tmp_path / "out").read_text(encoding="latin-1") == "Paris \\u2713"


def test_a_server_that_is_not_there_is_reported_as_down(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, line = said(capsys, "chat", url)
    assert (code, line) == (
        1,
        f"octavo-engine: no answer from {url}/v1: Connection refused; is the server up?"
        " octavo-engine serve prints its URL",
    )


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "octavo-engine serve smollm2" in shown.err and "exit codes: 0 done" in shown.err


def test_a_wrong_value_is_looked_for_where_it_was_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("max-num-seqs: many\n")
    assert said(capsys, "plan", "smollm2", f"--config={file}") == (
        2,
        f"octavo-engine: --config {file}: --max-num-seqs: 'many' is not a whole number",
    )
    monkeypatch.setenv("OCTAVO_MAX_NUM_SEQS", "0")
    code, line = said(capsys, "plan", "smollm2")
    assert code == 2 and "OCTAVO_MAX_NUM_SEQS is set: --max-num-seqs: 0 is below the smallest" in line


def test_a_variable_that_is_not_a_setting_is_warned_of_but_not_those_of_a_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "SEED",
        "MAX_NUM_SEQ",
        "FOO",
        "API_KEY",
        "SERVICE_HOST",
        "OPERATOR_SERVICE_HOST",
        "OPERATOR_PORT_443_TCP_ADDR",
    ):
        monkeypatch.setenv(f"OCTAVO_{name}", "1")
    for command in ("plan", "serve", "doctor"):
        monkeypatch.setitem(cli._COMMANDS, command, lambda args: 0)  # type: ignore[call-overload]

    def warnings(*arguments: str) -> list[str]:
        assert cli.main(arguments) == 0
        return [line.removeprefix("octavo-engine: warning: ") for line in capsys.readouterr().err.splitlines()]

    assert warnings("plan", "smollm2") == [
        "OCTAVO_MAX_NUM_SEQ has no effect on plan; did you mean OCTAVO_MAX_NUM_SEQS?",
        "OCTAVO_FOO has no effect on plan",
    ]
    assert warnings("serve", "smollm2")[2:] == [
        "OCTAVO_API_KEY has no effect on serve; did you mean OCTAVO_API_KEY_FILE?"
    ]
    assert warnings("doctor") == []  # a command without settings


def test_generate_looks_at_its_input_before_it_imports_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "octavo_engine.commands.generate", None)  # an import of it fails
    assert cli.main(["generate", "m", "--input", "/none", "--output", "x"]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_long_command_although_a_thread_works(number: signal.Signals) -> None:
    program = (
        "import os, signal, threading, time\nfrom octavo_engine.process_setup.signals import ended_at_once\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a script's job would have inherited SIG_IGN
        f"with ended_at_once('to go on'):\n    threading.Thread(target=time.sleep, args=[600]).start()\n"
        f"    os.kill(os.getpid(), {int(number)})\n    time.sleep(600)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (128 + number, "\nto go on\n")
    program = f"import os\nos.close(2)\n{program}"
    assert subprocess.run([sys.executable, "-c", program], timeout=300, check=False).returncode == 128 + number


def test_a_signal_that_is_ignored_ends_no_long_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell starts what a script ends with `&` so that the script's Ctrl-C does not reach it."""
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)
    before = signal.getsignal(signal.SIGINT)
    with ended_at_once():
        assert signal.getsignal(signal.SIGINT) is before


def test_generate_leaves_a_pipe_to_the_reader_of_its_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setitem(sys.modules, "octavo_engine.commands.generate", None)  # an import of it fails
    with pytest.raises(ImportError):
        cli.main(["generate", "m", "--input", str(tmp_path / "pipe"), "--output", "x"])


@pytest.mark.parametrize(("output", "why"), [("none/x", "No such file or directory"), ("", "Is a directory")])
def test_generate_sees_before_it_loads_that_it_cannot_write(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, output: str, why: str
) -> None:
    source = tmp_path / "prompts.jsonl"
    source.write_text('{"prompt": "a"}\n')
    target = tmp_path / output
    assert said(capsys, "generate", "no/model", f"--input={source}", f"--output={target}") == (
        2,
        f"octavo-engine: --output {target} cannot be written: {why}",
    )


HelpPages = Callable[[int], dict[str, str]]


@pytest.fixture
def help_pages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> HelpPages:
    """Return a function: the help page of each command in a terminal of so many columns."""

    def pages(columns: int) -> dict[str, str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = {}
        for command in COMMANDS:
            with pytest.raises(SystemExit):
                cli.main([command, "--help"])
            shown[command] = capsys.readouterr().out
        return shown

    return pages


@pytest.mark.parametrize("columns", [20, 400])
def test_help_fits_any_terminal(help_pages: HelpPages, columns: int) -> None:
    for command, page in help_pages(columns).items():
        assert page.startswith(f"usage: octavo-engine {command}")


@pytest.mark.parametrize("columns", [60, 72, 80, 100])
def test_help_breaks_no_flag_into_two_lines(help_pages: HelpPages, columns: int) -> None:
    for page in help_pages(columns).values():
        assert not [line for line in page.splitlines() if re.search(r"--[a-z0-9-]*-$", line)]


@pytest.mark.parametrize(
    ("main", "module"),
    [
        (engine_program.main, "octavo_engine.cli"),
        (operator_program.operator, "octavo_operator.cli"),
        (operator_program.kubectl, "octavo_operator.kubectl.cli"),
    ],
)
def test_ctrl_c_while_a_program_is_imported_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, main: Callable[[], int], module: str
) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, module, Interrupted(module))
    assert main() == 130


def test_only_a_command_that_asks_servers_imports_an_http_client() -> None:
    check = (
        "import sys\nfrom octavo_engine import cli\n"
        "try: cli.main(['serve', '--help'])\nexcept SystemExit: assert 'httpx2' not in sys.modules\n"
        "try: cli.main(['chat', '--help'])\nexcept SystemExit: assert 'httpx2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


def test_no_garbage_is_collected_while_a_program_imports() -> None:
    try:
        with lasting_imports():
            assert not gc.isenabled()
        assert gc.isenabled() and gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    # PyTorch, of which this is said, comes after the engine process has begun.
    check = "import octavo_engine.engine.process, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
