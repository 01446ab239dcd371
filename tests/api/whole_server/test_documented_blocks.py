"""The commands and Python of README and docs run as they are printed.

A block that cannot run here says in the title of its fence what it needs. A command that another test runs is listed in
ELSEWHERE. The others run here, those of a page in their order and in one folder, beside a server with the scripted
engine; `serve` is the real command with that engine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.served import Served
from tests.free_port import free_port
from tests.test_code_blocks import ALL, ROOT, Block, typed

TITLES = {
    "needs a cluster",
    "needs a cluster with KubeAI",
    "needs a GPU",
    "needs a model from Hugging Face",
    "needs docker and a GPU",
    "needs docker or buildah",
    "needs a registry",
    "needs pip install lm-eval",
    "takes minutes",
}
ELSEWHERE = {
    "make setup": "tests/test_make_setup.py::test_setup_says_what_each_step_does_and_nothing_else_in_a_pipe",
    "make demo": "tests/demo/test_demo.py::test_a_newcomer_sees_an_answer_and_its_figures",
    "make serve": "tests/demo/test_demo.py::test_an_interrupted_demo_leaves_nothing",
    "python examples/chat.py": "tests/api/whole_server/test_end_to_end.py::test_an_example_works",
    "octavo-engine serve smollm2  ": "tests/api/whole_server/test_end_to_end.py::test_a_sensible_answer",
    "GOMP_SPINCOUNT=300000 octavo-engine serve": (
        "tests/engine/test_llm.py::test_threads_that_wait_sleep_soon_unless_the_user_says_otherwise"
    ),
    "octavo-engine serve smollm2 --max-num-seqs 32": (
        "tests/engine/config/test_config.py::test_a_flag_wins_over_the_environment_and_that_over_the_file"
    ),
    "OCTAVO_MAX_NUM_SEQS=32 octavo-engine serve": (
        "tests/engine/config/test_config.py::test_a_flag_wins_over_the_environment_and_that_over_the_file"
    ),
    "octavo-engine doctor": "tests/engine/commands/test_doctor.py::test_this_machine_can_serve",
    "octavo-engine generate": "tests/engine/test_llm.py::test_generate_answers_every_line_and_bad_ones_with_an_error",
    "from octavo_engine import LLM": (
        "tests/engine/test_llm.py::test_answers_come_in_the_prompts_order_and_are_reported_as_they_end"
    ),
    "octavo-engine bench http://127.0.0.1:8000 --concurrency 1,2,4,8,16 --plot": (
        "tests/api/client/test_bench_loads.py::test_plots_are_a_picture_and_a_page_that_stands_alone"
    ),
    "octavo-engine bench http://127.0.0.1:8000 --find-saturation": (
        "tests/api/client/test_bench_loads.py::test_bench_finds_the_saturation_of_a_server"
    ),
    "octavo-engine compare": "tests/api/client/test_bench_loads.py::test_a_comparison_marks_what_is_worse",
    "octavo-engine top": "tests/api/client/test_top.py::test_lines_for_a_pipe",
    "octavo-operator local": "tests/operator/local/test_local.py::test_the_real_engine_answers_and_leaves_nothing",
    "make simulate": "tests/bench/test_simulation.py::test_two_settings_and_a_baseline_stand_side_by_side",
    "python -m bench.simulate": "tests/bench/test_simulation.py::test_two_settings_and_a_baseline_stand_side_by_side",
}
"""The beginnings of commands and Python that other tests run: they take long, do not end, or load the real model."""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  template:
    spec:
      containers:
      - {name: vllm, image: vllm/vllm-openai, args: [--model=meta-llama/Llama-3.1-8B-Instruct, --max-model-len=8192]}
"""
MODELS = """
apiVersion: kubeai.org/v1
kind: Model
metadata: {name: llama}
spec: {features: [TextGeneration], url: "hf://meta-llama/Llama-3.1-8B-Instruct", engine: VLLM}
"""
LINE = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}
LINE |= {"body": {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}]}}  # type: ignore[dict-item]


def runnable() -> dict[str, list[Block]]:
    """The blocks that run here, by page."""
    found: dict[str, list[Block]] = {}
    for block in ALL:
        if block.language in {"console", "python"} and not block.title:
            found.setdefault(str(block.page.relative_to(ROOT)), []).append(block)
    return found


def parts(block: Block) -> list[tuple[str, str]]:
    """The commands of a block with their printed output, or its Python as a whole."""
    return [(block.text, "")] if block.language == "python" else list(typed(block))


def plain(command: str) -> str:
    return re.sub(r"(^|\s)\.venv/bin/", r"\1", command)


def is_elsewhere(command: str) -> bool:
    return any(plain(command).startswith(each) for each in ELSEWHERE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with the files that the pages mention."""
    for name in ("examples", "manifests", "charts", "bench"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "service.yaml").write_text((ROOT / "manifests/samples/llama-8b.yaml").read_text())
    (tmp_path / "vllm-deployment.yaml").write_text(DEPLOYMENT)
    (tmp_path / "models.yaml").write_text(MODELS)
    (tmp_path / "requests.jsonl").write_text(json.dumps(LINE))
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    programs = folder / "bin"
    programs.mkdir()
    engine = programs / "octavo-engine"
    installed = Path(sys.executable).with_name("octavo-engine")
    engine.write_text(
        f'#!/bin/sh\n[ "$1" = serve ] && exec {sys.executable} -m tests.api.serve_once "$@"\nexec {installed} "$@"\n'
    )
    engine.chmod(0o755)
    path = os.pathsep.join([str(programs), str(installed.parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OCTAVO_PORT": str(free_port())}


def run(command: str, folder: Path, variables: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        check=False,
        cwd=folder,
        env=variables,
        input="Hi\n/quit\n",
        text=True,
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def write_what_cat_prints(command: str, output: str, folder: Path) -> None:
    if command.startswith("cat "):
        (folder / command.removeprefix("cat ")).write_text(output)


@pytest.mark.parametrize("page", runnable())
def test_the_blocks_of_a_page_run(page: str, folder: Path, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    server: Served = start(batch_storage=folder / "stored")
    server.play('{"city": "Paris"}')
    variables = environment(folder)
    names: dict[str, Any] = {}
    for block in runnable()[page]:
        for text, output in parts(block):
            write_what_cat_prints(text, output, folder)
            if is_elsewhere(text):
                continue
            here = re.sub(r"(127\.0\.0\.1|localhost):8000", f"127.0.0.1:{server.port}", plain(text))
            if block.language == "python":
                exec(compile(here, str(block), "exec"), names)  # noqa: S102  (our own documentation)
            else:
                run(here, folder, variables)


def test_titles_say_what_a_block_needs_or_which_file_it_quotes() -> None:
    for block in ALL:
        if block.title and block.title not in TITLES:
            assert block.text in (ROOT / block.title).read_text(), block


def test_commands_that_run_elsewhere_are_still_printed_and_tested() -> None:
    printed = [plain(text) for blocks in runnable().values() for block in blocks for text, _ in parts(block)]
    for beginning, test in ELSEWHERE.items():
        assert [command for command in printed if command.startswith(beginning)], beginning
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test
