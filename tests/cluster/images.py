"""Development images: pods that name them run this checkout's code, and no image is built.

The image itself holds little more than links into /usr. When a container of such an image is created, a script that
stands in front of runc mounts the machine's /usr, its Python, and the checkout with its virtual environment, read-only.
So a pod runs the checkout's code, has its real security context, and has no volume that its manifest does not name.
"""

import hashlib
import io
import json
import platform
import stat
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ClusterError
from .layout import CHECKOUT, INSIDE
from .programs import PAUSE_IMAGE, RUNTIME

USER = 10001
PROGRAMS = ("octavo-engine", "octavo-operator")
SCRIPTS = Path(sys.prefix) / "bin"
FOLDERS = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr", "var")
"""What every system has; a container runtime needs some of them to mount on, even under a read-only root."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LINKS = ("bin", "lib", "lib64", "sbin")
KV_CACHE = "OCTAVO_KV_CACHE_MEMORY=512MiB"
"""Enough for the pods of tests. By default an engine on a CPU takes 4 GiB, to zero which takes two cores 3 to 6 s."""
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/sbin/nologin\noctavo:x:{USER}:{USER}:octavo:/home/octavo:/sbin/nologin\n",
    "etc/group": f"root:x:0:\noctavo:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True)
class Image:
    """An image of one layer, as `docker save` writes it."""

    names: tuple[str, ...]
    layer: bytes
    config: dict[str, Any]

    def archive(self) -> bytes:
        """The tar archive that `ctr images import` reads."""
        root = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(self.layer).hexdigest()}"]}
        content = {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": self.config,
            "rootfs": root,
            "history": [{}],
        }
        config = json.dumps(content).encode()
        config_file = f"{hashlib.sha256(config).hexdigest()}.json"
        manifest = [{"Config": config_file, "RepoTags": list(self.names), "Layers": ["layer.tar"]}]
        return _tar(
            [
                _file("layer.tar", self.layer),
                _file(config_file, config),
                _file("manifest.json", json.dumps(manifest).encode()),
            ]
        )


def development_image(program: str) -> Image:
    """`program` of the checkout's virtual environment as an image; both of its usual names find it."""
    links = [_entry(name, tarfile.SYMTYPE, 0o777, f"usr/{name}") for name in LINKS]
    folders = [_entry(name, tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755) for name in FOLDERS]
    home = _entry("home/octavo", tarfile.DIRTYPE, 0o755)
    home[0].uid = home[0].gid = USER
    accounts = [_file(name, text.encode()) for name, text in ACCOUNTS.items()]
    return Image(
        names=_names(program),
        layer=_tar([*links, *folders, home, *accounts]),
        config={
            "Entrypoint": [program],
            "User": f"{USER}:{USER}",
            "WorkingDir": "/home/octavo",
            "Env": [
                f"PATH={SCRIPTS}:/usr/local/bin:/usr/bin:/bin",
                "HOME=/home/octavo",
                "PYTHONDONTWRITEBYTECODE=1",
                KV_CACHE,
            ],
        },
    )


def pause_image(busybox: Path) -> Image:
    """Return the image that holds a pod's namespaces open: a static busybox that sleeps."""
    content = busybox.read_bytes()
    if b"/ld-linux" in content:
        raise ClusterError(f"{busybox} needs libraries: install the Debian package busybox-static", exit_code=2)
    return Image(
        names=(PAUSE_IMAGE,),
        layer=_tar([_file("busybox", content, mode=0o755)]),
        config={"Entrypoint": ["/busybox", "sleep", "2000000000"]},
    )


def program_image(name: str, program: Path) -> Image:
    """Return an image called `name` of a static program, which is where most projects' images have theirs: in /bin."""
    path = f"bin/{program.name}"
    layer = _tar([_file(path, program.read_bytes(), mode=0o755)])
    return Image(names=(name,), layer=layer, config={"Entrypoint": [f"/{path}"]})


def mounted_folders() -> list[Path]:
    """Return the folders of this machine that development containers mount at the same path; none is inside another."""
    wanted = (Path("/usr"), Path(sys.base_prefix), CHECKOUT, Path(sys.prefix))
    with_targets = (path for folder in wanted for path in (folder, folder.resolve()))  # Python uses its links as such
    paths = list(dict.fromkeys(with_targets))
    return [path for path in paths if not any(other != path and path.is_relative_to(other) for other in paths)]


def check_readable() -> None:
    """Raise `ClusterError` if a pod's user could not run this checkout's programs (a clone made under umask 077)."""
    needed = [Path(sys.base_prefix) / "bin", *(SCRIPTS / program for program in PROGRAMS), CHECKOUT / "pyproject.toml"]
    for path in needed:
        if not path.exists():
            raise ClusterError(f"{path} is missing: run `make setup`", exit_code=2)
        for part in (path, *path.parents):
            if not any(part.is_relative_to(folder) for folder in mounted_folders()):
                break  # above what is mounted, the container has folders of its own
            needs = stat.S_IROTH | (stat.S_IXOTH if part.is_dir() else 0)
            if part.stat().st_mode & needs != needs:
                raise ClusterError(
                    f"{part} is closed to other users, but pods run as user {USER}: `chmod -R o+rX {part}`", exit_code=2
                )


def runtime_files() -> dict[str, str]:
    """The script that stands in front of runc and its data, by their path below the state folder."""
    mounts = [
        {"destination": str(folder), "source": str(folder), "type": "bind", "options": ["rbind", "rprivate", "ro"]}
        for folder in mounted_folders()
    ]
    names = [name for program in PROGRAMS for name in (f"{program}:dev", *_names(program))]
    data = INSIDE / "development-mounts.json"
    add_mounts = f"{sys.executable} -I -S {Path(__file__).with_name('add_mounts.py')} {data}"
    script = f'#!/bin/sh\ncase " $* " in *" create "*) {add_mounts} "$@" || exit 1 ;; esac\nexec runc "$@"\n'
    return {RUNTIME.name: script, data.name: json.dumps({"images": names, "mounts": mounts})}


def _names(program: str) -> tuple[str, ...]:
    """The complete names of the development image of a program; containerd takes `program:dev` for the first."""
    return (f"docker.io/library/{program}:dev", f"localhost/{program}:dev")


def _entry(name: str, kind: bytes, mode: int, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, target
    return info, b""


def _file(name: str, content: bytes, mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode, info.size = mode, len(content)
    return info, content


def _tar(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
