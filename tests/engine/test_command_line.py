"""What the command line says of itself: examples in --help, and completion for shells."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest

from octavo_engine import cli
from octavo_engine.help_examples import EXAMPLES

COMMANDS = sorted(cli._COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_that_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out.partition("examples:\n")[2]
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
