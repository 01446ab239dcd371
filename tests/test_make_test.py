"""`make test` runs several pytest processes at once; small test files take the place of the real ones here."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.__main__ as make_test

SMALL = ("-c", "/dev/null", "-p", "no:cacheprovider")
GOOD = "import time\n\ndef test_good():\n    time.sleep(0.5)\n"
BAD = "def test_bad():\n    assert not 'good'\n"


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str) -> int:
    files = {"first": folder / "test_first.py", "second": folder / "test_second.py"}
    for file, content in zip(files.values(), (first, second), strict=True):
        file.write_text(content)
    monkeypatch.setattr(make_test, "runs", lambda _: {name: [str(file)] for name, file in files.items()})
    monkeypatch.setattr(make_test, "ensure_built", lambda *_: None)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # starts in a third of the time
    return make_test.main(list(SMALL))


@pytest.mark.parametrize("environment", [{}, {"TEST_KUBECONFIG": "mine"}])
def test_every_module_is_in_one_run(environment: dict[str, str]) -> None:
    found: list[Path] = []
    for selection in make_test.runs(environment).values():
        ignored = [each.removeprefix("--ignore=") for each in selection if each.startswith("--ignore=")]
        for named in [Path(each) for each in selection if not each.startswith("--")]:
            modules = named.rglob("test_*.py") if named.is_dir() else [named]
            found += [module for module in modules if not any(module.is_relative_to(each) for each in ignored)]
    assert sorted(found) == sorted(Path("tests").rglob("test_*.py"))


@pytest.mark.parametrize(("first", "second", "code"), [(GOOD, GOOD, 0), (GOOD, BAD, 1), (BAD, GOOD, 1)])
def test_it_fails_if_either_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, code: int
) -> None:
    assert run(tmp_path, monkeypatch, first, second) == code


def test_one_runs_output_comes_after_the_others_and_both_closing_lines_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, monkeypatch, GOOD, BAD)  # the second ends first, and is held back
    lines = capsys.readouterr().out.splitlines()
    at = [number for number, line in enumerate(lines) if "1 passed" in line or "1 failed" in line]
    assert ["passed" in lines[number] for number in at] == [True, False, True, False]
    assert lines[at[2]].startswith("tests: first: ")
    assert at[2:] == [len(lines) - 2, len(lines) - 1]


def test_the_reasons_of_failures_are_repeated_before_the_closing_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, monkeypatch, BAD, GOOD)
    lines = capsys.readouterr().out.splitlines()
    repeated = [line for line in lines[:-2] if line.startswith("tests: ")]
    assert repeated[0].startswith("tests: E ") and "assert not 'good'" in repeated[0]
    assert any(line.startswith("tests: FAILED ") and "test_bad" in line for line in repeated)
    assert lines[-2 - len(repeated) : -2] == repeated
