"""Development images: pods that name them run this checkout's code, and no image is built.

The image itself holds little more than links into /usr. A MutatingAdmissionPolicy mounts the machine's /usr, its
Python, and the checkout with its virtual environment, read-only, into each container that names one. So a pod has its
real security context, and runs the code of the checkout.
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
from .layout import CHECKOUT
from .programs import PAUSE_IMAGE

USER = 10001
PROGRAMS = ("octavo-engine", "octavo-operator")
SCRIPTS = Path(sys.prefix) / "bin"
FOLDERS = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr", "var")
"""What every system has; a container runtime needs some of them to mount on, even under a read-only root."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LINKS = ("bin", "lib", "lib64", "sbin")
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
        names=(f"docker.io/library/{program}:dev", f"localhost/{program}:dev"),
        layer=_tar([*links, *folders, home, *accounts]),
        config={
            "Entrypoint": [program],
            "User": f"{USER}:{USER}",
            "WorkingDir": "/home/octavo",
            "Env": [f"PATH={SCRIPTS}:/usr/local/bin:/usr/bin:/bin", "HOME=/home/octavo", "PYTHONDONTWRITEBYTECODE=1"],
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


def admission_policy() -> list[dict[str, Any]]:
    """The MutatingAdmissionPolicy and its binding."""
    mounts = {f"octavo-dev-{number}": folder for number, folder in enumerate(mounted_folders())}
    volumes = ", ".join(
        f'Object.spec.volumes{{name: "{name}", hostPath: Object.spec.volumes.hostPath{{path: "{folder}"}}}}'
        for name, folder in mounts.items()
    )
    lists = ", ".join(_mount_into(field, mounts) for field in ("containers", "initContainers"))
    named = " || ".join(
        f"object.spec.?{field}.orValue([]).exists(c, {_IS_OURS})" for field in ("containers", "initContainers")
    )
    mutation = f"Object{{spec: Object.spec{{volumes: [{volumes}], {lists}}}}}"
    created_pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    policy = {
        "matchConstraints": {"resourceRules": [created_pods]},
        "matchConditions": [{"name": "names-a-development-image", "expression": named}],
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": mutation}}],
    }
    group, name = "admissionregistration.k8s.io/v1", "octavo-development-images"
    return [
        {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, spec in (
            ("MutatingAdmissionPolicy", policy),
            ("MutatingAdmissionPolicyBinding", {"policyName": name}),
        )
    ]


_IS_OURS = f"c.image.matches('^(localhost/|docker.io/library/)?({'|'.join(PROGRAMS)}):dev$')"


def _mount_into(field: str, mounts: dict[str, Path]) -> str:
    """CEL: the list of pod.spec.`field` whose containers of ours get the mounts."""
    kind = f"Object.spec.{field}"
    volume_mounts = ", ".join(
        f'{kind}.volumeMounts{{name: "{name}", mountPath: "{folder}", readOnly: true}}'
        for name, folder in mounts.items()
    )
    ours = f"object.spec.?{field}.orValue([]).filter(c, {_IS_OURS})"
    return f"{field}: {ours}.map(c, {kind}{{name: c.name, volumeMounts: [{volume_mounts}]}})"


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
