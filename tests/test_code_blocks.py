"""Every fenced block of README and docs is valid: known commands and flags, YAML, Python, JSON, a diff.

Nothing is run here; tests/api/whole_server/test_documented_blocks.py runs the blocks that need no more than this
machine. A command of ours is parsed by its own parser; of other programs (`OTHERS`) only what they read from this
repository is checked: files, values of the chart, paths of the API.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_engine import cli as engine_cli
from octavo_engine.server.admission.auth import KeyRing
from octavo_operator import cli as operator_cli
from octavo_operator.api.resource import parse
from octavo_operator.kubectl import cli as kubectl_cli
from tests.test_docs import PAGES, ROOT

READ = [*PAGES, ROOT / "bench" / "README.md"]
FENCE = re.compile(r"""^( *)```(\w*)(?: title="([^"\n]*)")?\n(.*?)^ *```$""", re.MULTILINE | re.DOTALL)
CHART = ROOT / "charts" / "octavo"
OTHERS = {
    "kubectl": "a cluster",
    "helm": "a cluster",
    "curl": "a running server",
    "ctr": "a node with containerd",
    "docker": "docker and a GPU",
    "skopeo": "skopeo and a registry",
    "cp": "a disk to copy to",
    "lm_eval": "pip install lm-eval",
    "uv": "pip install uv",
    "VLLM/bin/python": "the environment that the lines before make",
    "cat": "any system",
    "echo": "any system",
    "sed": "any system",
}
"""Programs that are not ours, and what running their commands takes."""
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PATHS = re.compile(r"localhost:\d+(/[\w/]+)")
SERVED = (ROOT / "docs" / "how-to" / "openai-api.md").read_text() + (ROOT / "docs/how-to/adapters.md").read_text()


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    title: str = ""
    """What the block needs, if it needs more than this machine."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in READ:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            indent = len(found[1])
            inner = "".join(line[indent:] for line in found[4].splitlines(keepends=True))
            yield Block(page, text.count("\n", 0, found.start()) + 1, found[2], inner, found[3] or "")


ALL = list(blocks())


def of(*languages: str) -> Any:
    chosen = [block for block in ALL if block.language in languages]
    assert chosen
    return pytest.mark.parametrize("block", chosen, ids=str)


def test_every_block_says_what_it_is() -> None:
    """`text` is for what is not typed: output, pictures, trees."""
    known = {"console", "yaml", "python", "json", "diff", "text"}
    assert [str(block) for block in ALL if block.language not in known] == []
    fences = [page for page in READ for _ in re.findall(r"^[ >]*(?:```|~~~)", page.read_text("utf-8"), re.MULTILINE)]
    assert fences == [block.page for block in ALL for _ in ("begin", "end")]  # no block has a form that is not read


def typed(block: Block) -> Iterator[tuple[str, str]]:
    """Each command after `$ `, with the output that is printed below it."""
    lines = block.text.splitlines(keepends=True)
    while lines:
        line = lines.pop(0)
        if not line.startswith("$ "):
            continue
        command = line[2:].rstrip("\n")
        while command.endswith("\\") or is_open(command):
            command += "\n" + lines.pop(0).rstrip("\n")
        output = "".join(itertools.takewhile(lambda line: not line.startswith("$ "), lines))
        yield command, output


def is_open(command: str) -> bool:
    """True if a quotation goes on in the next line."""
    try:
        list(split(command))
    except ValueError:
        return True
    return False


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command, one list for each program that a line runs."""
    for command, _ in typed(block):
        yield from programs(list(split(command.replace("\\\n", "\n"))))


def split(command: str) -> Iterator[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    return iter(lexer)


def programs(words: list[str]) -> Iterator[list[str]]:
    """Cut at pipes and `&&`; redirections and settings of the environment are left out."""
    current: list[str] = []
    rest = iter([*words, ";"])
    for word in rest:
        if set(word) <= set("|&;"):
            if current and current[0] != "export":
                yield current
            current = []
        elif set(word) <= set("<>"):
            next(rest)
        elif current or not re.match(r"[A-Z_]+=", word):
            current.append(word)


def parsed_by(parser: ArgumentParser, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return a parser's error about the words; empty if it takes them."""
    try:
        _, unknown = parser.parse_known_args(words)
    except SystemExit:
        return capsys.readouterr().err.strip()
    return f"unknown: {unknown}" if unknown else ""


def check_python(words: list[str]) -> str:
    """`python -m MODULE`, or a file of ours: it exists, and knows the flags; so do the folders given to pytest."""
    module, arguments = (words[2], words[3:]) if words[1] == "-m" else (words[1], words[2:])
    if module == "pytest":
        return "; ".join(each for each in arguments if "/" in each and not (ROOT / each).exists())
    if module.endswith(".py"):
        return "" if (ROOT / module).exists() else f"no file {module}"
    base = ROOT / module.replace(".", "/")
    sources = [path for path in (base.with_suffix(".py"), base / "__main__.py") if path.exists()]
    if not sources:
        return f"no module {module}"
    source = sources[0].read_text()
    for name in re.findall(r"^from (bench\S*) import", source, re.MULTILINE):  # which may add flags
        place = ROOT / name.replace(".", "/")
        source += "".join(path.read_text() for path in (place if place.is_dir() else place.parent).glob("*.py"))
    flags = [each.split("=")[0] for each in arguments if each.startswith("--")]
    strings = set(re.findall(r'"([^"\s]+)"', source))
    settings = set(re.findall(r"^    (\w+): ", source, re.MULTILINE))  # a dataclass whose fields are flags
    return "; ".join(flag for flag in flags if flag not in strings and flag[2:].replace("-", "_") not in settings)


def check_helm(words: list[str]) -> str:
    wrong = [word for word in words if word.startswith("charts/") and not (ROOT / word).is_dir()]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for flag, setting in itertools.pairwise(words):
        if flag == "--set":
            here: Any = values
            for part in setting.split("=")[0].split("."):
                here = here.get(part) if isinstance(here, dict) else None
            if here is None:
                wrong.append(f"no value {setting}")
    return "; ".join(wrong)


def check_kubectl(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    if words[1] == "octavo":
        return parsed_by(kubectl_cli.build_parser(), words[2:], capsys)
    files = [word for word in words if word.startswith(("manifests/", "charts/"))]
    return "; ".join(file for file in files if not (ROOT / file).exists())


def check_curl(words: list[str]) -> str:
    wrong = [path for word in words for path in PATHS.findall(word) if f"{path}`" not in SERVED and path not in SERVED]
    for flag, body in itertools.pairwise(words):
        if flag == "-d":
            json.loads(body)
    return "; ".join(wrong)


def check(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the problem of a command; empty if none is found."""
    program = words[0].removeprefix(".venv/bin/")
    if program == "octavo-engine":
        return parsed_by(engine_cli.build_parser(), words[1:], capsys)
    if program == "octavo-operator":
        return parsed_by(operator_cli.build_parser(), words[1:], capsys)
    if program in {"python", "python3"}:
        return check_python(words)
    if program == "make":
        targets = [word for word in words[1:] if "=" not in word]
        return "; ".join(target for target in targets if target not in TARGETS)
    checks: dict[str, Callable[[], str]] = {
        "kubectl": lambda: check_kubectl(words, capsys),
        "helm": lambda: check_helm(words),
        "curl": lambda: check_curl(words),
    }
    if program in checks:
        return checks[program]()
    return "" if program in OTHERS else f"unknown program {program}"


@of("console")
def test_commands_are_understood(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    found = list(commands(block))
    assert found, "a console block begins with `$ `"
    wrong = {shlex.join(words): problem for words in found if (problem := check(words, capsys))}
    assert wrong == {}


def test_wrong_commands_would_be_found(capsys: pytest.CaptureFixture[str]) -> None:
    """The checks themselves: each of these lines is wrong in its own way."""
    wrong = (
        "octavo-engine serve smollm2 --max-num-seq 3",
        "octavo-engine bench http://x --concurrency 0",
        "octavo-operator chek x.yaml",
        "kubectl octavo why",
        "kubectl apply -f manifests/nothing.yaml",
        "helm install octavo charts/octavo --set operator.nothing=1",
        "curl localhost:8000/v1/nothing",
        "make nothing",
        "python -m bench.nothing",
        "python -m bench.simulate --nothing",
        "python -m pytest tests/nothing",
        "python examples/nothing.py",
        "true && nothing",
    )
    for line in wrong:
        [*_, words] = commands(Block(ROOT, 1, "console", f"$ {line}"))
        assert check(words, capsys), line


def as_service(document: dict[str, Any]) -> dict[str, Any]:
    """A part of an LLMService's manifest as a whole one."""
    spec = {"model": {"source": {"demo": "smollm2"}}, **document["spec"]}
    head = {"apiVersion": "octavo.dev/v1alpha1", "kind": "LLMService", "metadata": {"name": "part"}}
    return {**head, **document, "spec": spec}


@of("yaml")
def test_yaml_is_what_reads_it(block: Block, tmp_path: Path) -> None:
    """LLMServices and parts of them by the CRD's own model, files of keys by the server; ConfigMaps of Argo CD and
    scrape configurations are of other programs."""
    for document in yaml.safe_load_all(block.text):
        match document:
            case {"spec": _}:
                parse(as_service(document))
            case {"schedules": _}:
                parse(as_service({"spec": {"autoscaling": {"minReplicas": 1, "maxReplicas": 8, **document}}}))
            case {"keys": keys}:
                file = tmp_path / "keys.yaml"
                file.write_text(block.text)
                assert len(KeyRing(file, priorities=True)) == len(keys)
            case {"data": _} | {"scrape_configs": _}:
                pass
            case _:
                raise AssertionError(f"{block}: whose YAML is this?")


@of("python")
def test_python_compiles_and_imports_what_there_is(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found = importlib.import_module(node.module)
            assert [each.name for each in node.names if not hasattr(found, each.name)] == []
        elif isinstance(node, ast.Import):
            assert [each.name for each in node.names if importlib.util.find_spec(each.name) is None] == []


def hunks(diff: str) -> Iterator[tuple[Path, str]]:
    """Each hunk's file, and what it finds there: all lines but the added ones."""
    for section in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        path, _, rest = section.partition("\n")
        for hunk in re.split(r"^@@.*\n", rest, flags=re.MULTILINE)[1:]:
            before = [line[1:] for line in hunk.strip("\n").splitlines() if not line.startswith("+")]
            yield ROOT / path, "\n".join(before)


@of("diff")
def test_a_diff_fits_the_files_that_it_changes(block: Block) -> None:
    found = list(hunks(block.text))
    assert found
    assert [f"{path.name}: {before}" for path, before in found if before not in path.read_text()] == []


def test_json_in_text_parses() -> None:
    """Lines of output or of files that look like JSON objects, where nothing is left out with an ellipsis."""
    for block in ALL:
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "console":
            for line in block.text.splitlines():
                if line.startswith("{") and line.endswith("}") and "…" not in line:
                    json.loads(line)
