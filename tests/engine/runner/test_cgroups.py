"""The limits of a process: those of a container, of a systemd unit, and of the cgroups above them, v2 and v1."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from octavo_engine.runner import cores
from octavo_engine.runner.cgroups import cgroup_cores, cgroup_memory
from octavo_engine.runner.memory import device_memory
from octavo_engine.server.preparation.text_pool import default_workers

GIB = 1 << 30
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
UNLIMITED_V1 = "9223372036854771712"


def write_cgroup(folder: Path, limit: object, used: int, names: tuple[str, str, str] = V2, droppable: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used}\n{names[2]} {droppable}\n")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "self"
    path.write_text("0::/\n")
    return path


@pytest.mark.parametrize(("controller", "names"), [("", V2), ("memory", V1)])
def test_a_containers_limit_is_that_of_the_mounted_root(tmp_path: Path, own: Path, controller: str, names) -> None:
    write_cgroup(tmp_path / controller, 4 * GIB, 3 * GIB, names, droppable=2 * GIB)
    assert cgroup_memory(tmp_path, own) == (4 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    ("line", "controller", "names"),
    [("0::", "", V2), ("4:memory:", "memory", V1), ("9:cpu,memory:", "memory", V1)],
)
def test_a_unit_has_the_tightest_limit_of_its_cgroup_and_those_above(
    tmp_path: Path, own: Path, line: str, controller: str, names
) -> None:
    own.write_text(f"1:name=systemd:/other\n{line}/system.slice/octavo.service\n")
    mounted = tmp_path / controller
    write_cgroup(mounted / "system.slice", 16 * GIB, 15 * GIB, names)
    write_cgroup(mounted / "system.slice" / "octavo.service", 4 * GIB, GIB, names)
    assert cgroup_memory(tmp_path, own) == (4 * GIB, GIB)  # others in the slice leave less than the unit's own limit


def test_a_path_of_the_host_that_a_container_does_not_have_is_passed_over(tmp_path: Path, own: Path) -> None:
    own.write_text("4:memory:/kubepods/burstable/pod1/c1\n0::/kubepods/burstable/pod1/c1\n")
    write_cgroup(tmp_path / "memory", 2 * GIB, GIB, V1)
    assert cgroup_memory(tmp_path, own) == (2 * GIB, GIB)


def test_without_a_limit_there_is_the_machines_memory(tmp_path: Path, own: Path, monkeypatch) -> None:
    write_cgroup(tmp_path, "max", 5 * GIB)
    assert cgroup_memory(tmp_path, own) is None
    assert cgroup_memory(tmp_path / "none", tmp_path / "none") is None
    write_cgroup(tmp_path / "memory", UNLIMITED_V1, GIB, V1)
    monkeypatch.setattr(device_memory, "cgroup_memory", lambda: cgroup_memory(tmp_path, own))
    assert device_memory.host_memory().name == "this machine's memory"


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"system.slice/octavo.service/cpu.max": "200000 100000\n", "system.slice/cpu.max": "max 100000\n"}, 2),
        ({"system.slice/octavo.service/cpu.max": "max 100000\n", "system.slice/cpu.max": "300000 100000\n"}, 3),
        ({}, None),
    ],
)
def test_a_container_and_a_unit_may_limit_the_cores(
    tmp_path: Path, own: Path, files: dict[str, str], limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.write_text("4:cpu,cpuacct:/\n0::/system.slice/octavo.service\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_cores(tmp_path, own) == limit
    monkeypatch.setattr(cores, "cgroup_cores", lambda: limit)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    expected = 8 if limit is None else math.ceil(limit)
    assert cores.usable_cores() == expected
    assert default_workers() == max(2, expected // 2), "text workers"
