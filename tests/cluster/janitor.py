"""Removes a cluster's traces when its processes have ended in any way: `python -m tests.cluster.janitor STATE`.

Stdin is a pipe whose other end is held by the process that started the cluster. The node's first process inherits it
and ends at its end of file; then the kernel ends all other processes of the node. So the cluster ends, too, when the
process that started it is killed.
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
