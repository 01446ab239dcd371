"""`LLM` and all modules below it work with only the six packages that they may import, and those packages'
requirements."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from adapters import RandomAdapter
from packaging.requirements import Requirement
from transformers import AutoModelForCausalLM

from octavo_engine.llm import LLM
from octavo_engine.sampling_params import SamplingParams

ENGINE = Path(__file__).parents[2] / "engine"
ALLOWED = ("torch", "triton", "numpy", "safetensors", "tokenizers", "jinja2")
ELSEWHERE = (
    "fastapi",
    "gguf",
    "llguidance",
    "msgspec",
    "octavo_operator",
    "prometheus_client",
    "pydantic",
    "transformers",
    "zmq",
)
"""What this project needs in other places, and some of which a careless import would bring in."""
PROMPT = [1, 5, 9, 2, 7]
SETTINGS = {"device": "cpu", "dtype": "float32", "max_model_len": 64}

PROGRAM = """
import json, pkgutil, sys
site, engine, elsewhere, model, settings, prompt, adapter = json.loads(sys.argv[1])
sys.path += [site, engine]
for name in elsewhere:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(f"{name} can be imported")
from octavo_engine import LLM, SamplingParams
import octavo_engine.engine.startup.rank  # the process of another rank
import octavo_engine.attention, octavo_engine.core, octavo_engine.kernels
import octavo_engine.model, octavo_engine.runner, octavo_engine.text
below = ("attention", "core", "kernels", "model", "runner", "text")
for package in (sys.modules[f"octavo_engine.{name}"] for name in below):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        __import__(module.name)
llm = LLM(model, **settings)
[answer] = llm.generate([prompt], SamplingParams(max_tokens=12, temperature=0))
llm.close()
guesses = '{"method": "ngram", "num_speculative_tokens": 2}'
more = LLM(model, enable_lora=True, max_loras=1, speculative_config=guesses, **settings)
more.load_adapter("own", adapter)
[adapted] = more.generate([prompt], SamplingParams(max_tokens=12, temperature=0), adapter="own")
[guided] = more.generate([prompt], SamplingParams(max_tokens=12, temperature=0, grammar="%regex a+"))
more.close()
print(json.dumps([answer.token_ids, adapted.token_ids, guided.error]))
"""


def closure(names: tuple[str, ...]) -> list[Distribution]:
    """The installed distributions of these names and of all that they require."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in found:
            continue
        found[str(wanted)] = one = distribution(wanted.name)
        for required in map(Requirement, one.requires or ()):
            extras = ("", *wanted.extras)
            if required.marker is None or any(required.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(required)
    return list(found.values())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to import them from: links to their packages and modules where they are installed."""
    folder = tmp_path_factory.mktemp("bare")
    for one in closure(ALLOWED):
        tops = {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (folder / top).exists():  # several may share a folder without __init__.py
                (folder / top).symlink_to(Path(str(one.locate_file(top))))
    return folder


def test_llm_answers_with_six_packages_alone(site, tiny_model, tmp_path):
    """With an adapter and guesses too; what needs a package that is not there says which."""
    assert all(importlib.util.find_spec(name) for name in ELSEWHERE), "what is not installed proves nothing"
    adapter = RandomAdapter(4).save(AutoModelForCausalLM.from_pretrained(tiny_model), tmp_path / "adapter")
    given = json.dumps([str(site), str(ENGINE), ELSEWHERE, str(tiny_model), SETTINGS, PROMPT, str(adapter)])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, given], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    params = SamplingParams(max_tokens=12, temperature=0)
    llm = LLM(str(tiny_model), enable_lora=True, max_loras=1, **SETTINGS)
    llm.load_adapter("own", str(adapter))
    [answer], [adapted] = llm.generate([PROMPT], params), llm.generate([PROMPT], params, adapter="own")
    llm.close()
    plain_tokens, adapted_tokens, error = json.loads(done.stdout)
    assert (plain_tokens, adapted_tokens) == (answer.token_ids, adapted.token_ids)
    assert len(answer.token_ids) == 12 and adapted.token_ids != answer.token_ids
    assert "llguidance" in error
