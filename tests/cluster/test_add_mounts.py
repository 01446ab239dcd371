"""Containers of development images get the machine's folders, others stay as they are."""

import json
from pathlib import Path

import pytest

from .add_mounts import IMAGE, main


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("octavo-engine:dev", ["/usr", "/proc", "/tmp", "/tmp/checkout", "/dev/shm"]),
        ("other:1", ["/proc", "/dev/shm", "/tmp"]),
    ],
)
def test_folders_are_mounted_after_those_they_lie_in(image: str, expected: list[str], tmp_path: Path) -> None:
    """A volume at /tmp would hide a checkout in /tmp that was mounted before it."""

    def mounts(*destinations: str) -> list[dict[str, str]]:
        return [{"destination": destination} for destination in destinations]

    container = {"annotations": {IMAGE: image}, "mounts": mounts("/proc", "/dev/shm", "/tmp")}
    (tmp_path / "config.json").write_text(json.dumps(container))
    added = tmp_path / "mounts.json"
    added.write_text(json.dumps({"images": ["octavo-engine:dev"], "mounts": mounts("/tmp/checkout", "/usr")}))
    main(str(added), "create", "--bundle", str(tmp_path), "id")
    found = [mount["destination"] for mount in json.loads((tmp_path / "config.json").read_text())["mounts"]]
    assert found == expected
