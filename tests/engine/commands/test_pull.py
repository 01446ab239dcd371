"""`octavo-engine pull` as a pod's first container runs it: checks before the download, progress, and the link at the
end."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
from checkpoints import reference_model, save
from fake_hub import PATIENT, SIGNATURE, fake_hub
from huggingface_hub.utils import filter_repo_objects
from test_plan_command import LLAMA_70B

from octavo_engine.cli import main
from octavo_engine.commands.pull_progress import Progress, progress_port
from octavo_engine.model.downloads.download import DownloadProgress, without_queries
from octavo_engine.model.downloads.hub import IGNORED, SMALL, WEIGHTS
from tests.free_port import free_port
from tests.loopback import loopbacks

MODEL = "octavo/tiny"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return Path(save(reference_model(), tmp_path / "repository"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def puller(home: Path, endpoint: str, *arguments: str) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "OCTAVO_"))}
    environment = {**inherited, **PATIENT, "HF_HOME": str(home / "hf"), "HF_ENDPOINT": endpoint}
    environment["XDG_CACHE_HOME"] = str(home)
    command = [sys.executable, "-m", "octavo_engine.cli", "pull", MODEL, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pull(home: Path, endpoint: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    process = puller(home, endpoint, *arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Another program fetches the same model into the same cache."""
    (home / "octavo" / "locks").mkdir(parents=True)
    name = hashlib.sha256(MODEL.encode()).hexdigest()[:32]
    with (home / "octavo" / "locks" / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_what_fits_is_fetched_and_linked_and_the_link_moves_on(repository: Path, home: Path) -> None:
    link = home / "model"
    with fake_hub(MODEL, repository) as hub:
        code, out, err = pull(home, hub.url, f"--link={link}", "--check-memory", "--device=cpu")
        assert code == 0, err
        first = Path(out.strip())
        assert link.resolve() == first.resolve()
        assert (link / "config.json").is_file() and list(link.glob("*.safetensors"))
        hub.push()
        code, out, err = pull(home, hub.url, f"--link={link}")
        assert code == 0, err
    assert Path(out.strip()) != first
    assert link.resolve() == Path(out.strip()).resolve()
    assert sorted(path.name for path in home.iterdir() if path.name.startswith("model")) == ["model"]


def test_what_cannot_fit_is_reported_before_its_weights_are_fetched(repository: Path, home: Path) -> None:
    (repository / "config.json").write_text(json.dumps(LLAMA_70B))
    with fake_hub(MODEL, repository) as hub:
        code, out, err = pull(home, hub.url, "--check-memory", "--device=cpu", f"--link={home / 'model'}")
        assert [path for path in hub.requested if path.endswith("/config.json")]
        assert not [path for path in hub.requested if path.endswith(".safetensors")]
    assert (code, out) == (4, "")
    assert "does not fit into" in err and "needs" in err and "Try " in err
    assert not (home / "model").is_symlink()


def test_how_a_model_pools_is_fetched_with_it_and_other_formats_are_not() -> None:
    wanted = ["config.json", "modules.json", "1_Pooling/config.json", "model-00001-of-00002.safetensors"]
    wanted += ["2_Dense/config.json", "2_Dense/model.safetensors"]  # EmbeddingGemma cannot be computed without them
    others = [
        "onnx/config.json",
        "original/params.json",
        "0_Transformer/model.safetensors",
        "1_Pooling/model.safetensors",
        "2_Dense/onnx/model.safetensors",
        "consolidated.safetensors",
        "a.py",
    ]
    found = filter_repo_objects([*wanted, *others], allow_patterns=[*SMALL, *WEIGHTS], ignore_patterns=list(IGNORED))
    assert list(found) == wanted


@pytest.mark.parametrize("status", [416, 500])
def test_signed_addresses_are_neither_said_nor_logged(repository: Path, home: Path, status: int) -> None:
    with fake_hub(MODEL, repository) as hub:
        hub.cdn = [0, status]  # what breaks off once the library writes into the log, what is refused comes to us
        code, _, err = pull(home, hub.url)
    assert code == 3
    assert "/cdn/" in err and "resume" in err
    assert SIGNATURE not in err and "Signature" not in err


def test_the_queries_of_addresses_are_cut() -> None:
    signed = "https://cdn.example/a/b.json?X-Amz-Signature=0'1&Expires=1"
    for before, after in (("416 for url '", "'"), ("(", "): no"), ("<", ">, <https://cdn.example/>."), ("", "")):
        said = without_queries(f"{before}{signed}{after}")
        assert said == f"{before}https://cdn.example/a/b.json?...{after}"


def test_a_link_half_made_by_a_killed_container_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)  # in a container each is process 1
    (tmp_path / "model.1").symlink_to(tmp_path / "elsewhere")
    assert main(["pull", "smollm2", f"--link={tmp_path}/model"]) == 0
    assert (tmp_path / "model").resolve().name.endswith(".gguf")
    assert not (tmp_path / "model.1").is_symlink()


def test_settings_that_the_engine_would_refuse_are_refused_first(repository: Path, home: Path) -> None:
    with fake_hub(MODEL, repository) as hub:
        code, _, err = pull(home, hub.url, "--check-memory", "--device=cpu", "--max-model-len=999999")
        assert not [path for path in hub.requested if path.endswith(".safetensors")]
    assert code == 2
    assert "--max-model-len 999999 is above" in err


def test_others_see_how_far_it_is(repository: Path, home: Path) -> None:
    port = free_port()
    with fake_hub(MODEL, repository) as hub:
        with locked(home):
            process = puller(home, hub.url, f"--progress-port={port}")
            answer = wait_for(f"http://127.0.0.1:{port}/health/startup")
            body = answer.json()
            assert (answer.status_code, body["status"], body["phase"], body["progress"]) == (
                503,
                "loading",
                "pulling",
                0,
            )
            assert "another program fetches octavo/tiny" in body["detail"]
            for address in loopbacks():  # a pod's address may be of either kind
                host = f"[{address}]" if ":" in address else address
                metrics = httpx2.get(f"http://{host}:{port}/metrics", timeout=120)
                assert metrics.status_code == 200
            assert 'octavo_load_progress_ratio{model_name="octavo/tiny"} 0.0' in metrics.text
        assert process.communicate(timeout=300)[0]
    assert process.returncode == 0


def wait_for(url: str) -> httpx2.Response:
    """The first answer that tells of the wait for the lock."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        try:
            answer = httpx2.get(url)
            if answer.json()["detail"].startswith("another"):
                return answer
        except httpx2.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("no answer")


def test_what_is_not_known_yet_is_not_reported_in_bytes() -> None:
    assert DownloadProgress().detail == "listing its files"
    assert DownloadProgress(complete=True).detail == "nothing to fetch"
    assert DownloadProgress(total=2048).detail == "0 B of 2.0 KiB"


def test_a_probe_that_gives_up_leaves_no_trace_in_the_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("octavo_engine.commands.pull_progress.health", lambda _: {"padding": "x" * (16 << 20)})
    ended = threading.Event()
    monkeypatch.setattr(ThreadingHTTPServer, "shutdown_request", lambda *_: ended.set())
    with progress_port(Progress(MODEL), 0) as port, socket.create_connection(("127.0.0.1", port)) as probe:
        probe.sendall(b"GET /health/startup HTTP/1.0\r\n\r\n")
        probe.recv(1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        probe.close()
        assert ended.wait(120)
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken_and_a_link_that_cannot_be_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        assert main(["pull", "smollm2", f"--progress-port={taken.getsockname()[1]}"]) == 2
    assert "cannot listen there" in capsys.readouterr().err
    assert main(["pull", "smollm2", f"--link={tmp_path}/no/such/folder"]) == 2
    assert "cannot be made" in capsys.readouterr().err
    assert main(["pull", "smollm2", f"--link={tmp_path}/model"]) == 0
    assert (tmp_path / "model").resolve().name.endswith(".gguf")


def test_more_than_the_cache_may_hold_is_not_begun(repository: Path, home: Path) -> None:
    with fake_hub(MODEL, repository) as hub:
        code, out, err = pull(home, hub.url, "--max-size=1KiB")
        assert (code, out) == (3, "")
        assert "of the cache, which may hold 1.0 KiB (--max-size; cache.size of an LLMService)" in err
        assert not [file for file in home.rglob("*.safetensors") if file.stat().st_size]
        assert pull(home, hub.url, "--max-size=1GiB")[0] == 0
