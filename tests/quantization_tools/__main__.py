"""`make quantization-tools`: checkpoints that quantization tools make here, read by Octavo.

Each tool is a file here, a program that quantizes a small random model in all of its schemes and saves, beside each
checkpoint, the weights in float32 that the tool itself makes of it. Octavo's log probabilities of a prompt are
compared with those of transformers with these weights. The tools have their own packages, .cache/quantization-tools,
and find PyTorch and transformers in this environment. The exit code is 0 only if all differences are within the bound;
what a tool cannot make on this machine is a line of the page, bench/results/<date>-quantization-tools.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from bench.report import save
from tests.quantization_tools.compare import BOUND, Comparison, compare
from tests.quantization_tools.source import write_source

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "quantization-tools"
PACKAGES, MADE = CACHE / "packages", CACHE / "made"
LONGEST = 1800
"""The seconds that a tool may take; then the checkpoints count that it has made."""


def install() -> None:
    """The tools' packages, where they are; free where nothing has changed."""
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable]
    # GPTQModel is built here, with this environment's PyTorch.
    uv += ["--no-deps", "--no-build-isolation", "--target", str(PACKAGES), "--requirements"]
    subprocess.run([*uv, HERE / "requirements.txt"], check=True)


def make(program: Path) -> Path:
    """Let one tool make its checkpoints; returns their folder."""
    folder = MADE / program.stem.removeprefix("with_")
    shutil.rmtree(folder, ignore_errors=True)
    write_source(folder / "source")
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGES),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "GPTQMODEL_CPU_WORKERS": "2",  # on two cores its default is fewer than it needs
    }
    command = [sys.executable, program, folder]
    with (folder / "log").open("w") as log, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=LONGEST, check=False)
    return folder


def page(title: str, results: list[Comparison]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"# {title}\n",
        "`make quantization-tools`: the largest difference of a log probability, between Octavo on a CPU in float32 "
        "and transformers in float32 with the weights that the tool itself makes of its checkpoint, over 47 tokens and "
        f"a vocabulary of 512. The model is a random Llama; the bound is {BOUND:g}.\n",
        "| tool | scheme | largest difference |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {result.tool} | {result.scheme} | {result.outcome} |" for result in results]
    return "\n".join(lines) + "\n"


def main() -> int:
    """The exit code."""
    programs = {file.stem.removeprefix("with_"): file for file in sorted(HERE.glob("with_*.py"))}
    parser = argparse.ArgumentParser(description="Compare Octavo with quantization tools on checkpoints of theirs.")
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"only these, without a page: {', '.join(programs)}")
    tools = parser.parse_args().tools
    install()
    results = [result for name in tools or programs for result in compare(make(programs[name]))]
    if not tools:
        save("quantization-tools", {"results": [asdict(each) for each in results]}, lambda title: page(title, results))
    return 0 if results and all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
