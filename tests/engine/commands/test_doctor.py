"""`octavo-engine doctor`: results for this machine, and for machines that lack something."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo_engine.cli import main
from octavo_engine.commands import doctor
from octavo_engine.kernels import gpu_limits
from octavo_engine.kernels.cpu import build
from octavo_engine.runner import cores
from octavo_engine.runner.memory import device_memory


def found(name: str, port: int = 0) -> doctor.Result:
    return next(each for each in doctor.results(port) if each.name == name)


def test_this_machine_can_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--port", "0"]) == 0
    lines = capsys.readouterr().out
    for name in ("octavo", "torch", "GPU", "CPU", "memory", "/dev/shm", "downloads", "open files", "port"):
        assert f" {name} " in lines
    assert main(["doctor", "--port", "0", "--json"]) == 0
    assert {each["state"] for each in json.loads(capsys.readouterr().out)} <= {"ok", "warning"}


def test_a_port_in_use_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["doctor", "--port", str(port)]) == 2
        assert f"{port}: Address already in use" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["99999", "-1", "x", ""])
def test_what_is_no_port_is_refused_before_any_check(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", f"--port={given}"])
    assert f"--port: {given!r} is not a whole number from 0 to 65,535" in capsys.readouterr().err


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it fails
    assert main(["doctor", "--port", "0"]) == 2
    assert "in a checkout of Octavo: make setup, or pip install '.[engine]'" in capsys.readouterr().out


def test_an_old_cpu_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "cpu_flags", frozenset)
    monkeypatch.setattr(cores, "usable_cores", lambda: 77)  # as a container's limit says, not the machine
    cpu = next(each for each in doctor.results(0) if each.name == "CPU")
    assert cpu.state == "warning" and "neither AVX2 nor NEON" in cpu.text and cpu.text.startswith("77 cores, ")
    assert "gcc" not in cpu.advice


def test_what_is_lacking_comes_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_compiler() -> Path:
        raise build.BuildError("gcc cannot be run")

    usage = namedtuple("usage", "free")
    monkeypatch.setattr(build, "built_library", no_compiler)
    monkeypatch.setattr(
        device_memory, "host_memory", lambda: device_memory.DeviceMemory(1 << 30, 1 << 29, "this machine's memory")
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 20))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 256))
    lacking = {each.name: each for each in doctor.results(0) if each.state == "warning"}
    assert set(lacking) == {"CPU", "memory", "/dev/shm", "downloads", "open files"}
    assert all(each.advice for each in lacking.values())
    assert "HF_HOME" in lacking["downloads"].advice and "--shm-size" in lacking["/dev/shm"].advice


@pytest.mark.parametrize(
    ("capability", "free", "state", "advice"),
    [
        ((9, 0), 78, "ok", ""),
        ((9, 0), 40, "warning", "another process holds memory"),
        ((8, 6), 78, "ok", ""),
        ((7, 5), 78, "problem", "the kernels need capability 8.0 (Ampere) or later"),
    ],
)
def test_gpus(monkeypatch: pytest.MonkeyPatch, capability: Any, free: int, state: str, advice: str) -> None:
    """torch's answers are pretended: this machine has no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA H100")
    monkeypatch.setattr(gpu_limits, "capability", lambda device: capability)  # torch's own would be kept in its cache
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free << 30, 80 << 30))
    gpu = found("GPU 0")
    assert gpu.state == state and advice in gpu.advice
    assert gpu.text.endswith(", does not multiply in FP8") is (capability == (8, 6))
