"""The few Debian packages that a node needs beside the programs built with Go, and those of other tests."""

import os
import shutil
import subprocess
from collections.abc import Mapping

from .errors import ClusterError
from .report import Report

NEEDED = {
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "busybox": "busybox-static",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
"""Program → the package that brings it."""


def ensure_packages(report: Report) -> None:
    """Install what is missing, as root; raise `ClusterError` (exit code 2) where that cannot be done."""
    if os.geteuid() != 0:
        raise ClusterError(
            "the cluster needs root (namespaces, mounts, cgroups): run it as root, for example `sudo make cluster`",
            exit_code=2,
        )
    install_missing(NEEDED, report)


def install_missing(needed: Mapping[str, str], report: Report) -> None:
    """Install the packages of programs that are absent; `ClusterError` (exit code 2) where that cannot be done."""
    missing = sorted({package for program, package in needed.items() if not shutil.which(program)})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise ClusterError(f"these packages are needed, and there is no apt-get: {' '.join(missing)}", exit_code=2)
    report(f"installing Debian packages: {' '.join(missing)}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    program = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]  # several test processes may install at the same time
    for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *missing]):
        done = subprocess.run([*program, *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"apt-get {' '.join(command)} failed:\n{done.stderr.strip()}", exit_code=2)
