"""Process 1 of the node: `python -I first_process.py STATE INSIDE NODE_IP`, run by `unshare`.

It gives the node a file system and a network of its own, writes `up`, and waits for the end of its stdin, which the
process that started the cluster holds. When it ends, the kernel ends every other process of the node.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

KUBELET_SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def lay_file_system(state: str, inside: Path) -> None:
    """Bind the folder STATE to INSIDE; let what programs write by habit (sockets, logs, caches) die with the node."""
    os.chdir(state)  # still reachable as "." where /run hides it
    run("mount", "-n", "-t", "tmpfs", "tmpfs", "/run")  # -n: no note of it in the host's /run
    for folder in (inside, Path("/run/lock"), Path("/run/netns"), Path("/run/var-lib"), Path("/run/var-lib-work")):
        folder.mkdir()
    run("mount", "--bind", ".", str(inside))
    os.chdir("/")
    run("mount", "-t", "tmpfs", "tmpfs", "/var/log")
    layers = "lowerdir=/var/lib,upperdir=/run/var-lib,workdir=/run/var-lib-work"
    run("mount", "-t", "overlay", "overlay", "-o", layers, "/var/lib")


def protect_kernel_settings() -> None:
    """Lay copies over the settings of the whole machine that the kubelet changes, so that it changes those."""
    for setting in KUBELET_SETTINGS:
        original, copy = Path("/proc/sys", setting), Path("/run", setting.replace("/", "."))
        copy.write_text(original.read_text())
        run("mount", "--bind", str(copy), str(original))


def lay_network(address: str) -> None:
    run("ip", "link", "set", "lo", "up")
    run("ip", "address", "add", f"{address}/32", "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def main(state: str, inside: str, address: str) -> None:
    lay_file_system(state, Path(inside))
    protect_kernel_settings()
    lay_network(address)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries orphans
    print("up", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:4])
