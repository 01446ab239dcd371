"""Waits for a cluster's namespaces to end, however they end, and sweeps: `python -m tests.cluster.janitor STATE`.

Stdin is a pipe whose other end the cluster's owner holds. It is handed on to the node's first process, which ends at
its end of file; with that process the kernel ends all others. So nothing has to be told when the owner is killed.
"""

import signal
import subprocess
import sys
from pathlib import Path

from .layout import INSIDE, NODE_IP
from .state import sweep

UNSHARE = ("unshare", "--net", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child")


def main(folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the owner decides; this one outlives it
        signal.signal(number, signal.SIG_IGN)
    first_process = [sys.executable, "-I", str(Path(__file__).with_name("first_process.py"))]
    # Descriptors stay open: the state folder's lock is held as long as any of the three processes lives.
    subprocess.run([*UNSHARE, *first_process, str(folder), str(INSIDE), NODE_IP], check=False, close_fds=False)
    sweep(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
