"""`make cluster`: keeps a cluster in the foreground; `build` only builds its programs, `helm` only helm."""

import argparse
import ctypes
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from .build import HELM, MINORS, NEWEST, ensure_built, link_programs
from .cluster import prepare, running_cluster
from .errors import ClusterError
from .layout import HOME

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1


class Stopped(BaseException):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("up", "build", "helm"), default="up", help="default: up")
    parser.add_argument("--home", type=Path, default=HOME, help="folder for kubeconfig and logs (default: %(default)s)")
    parser.add_argument(
        "--kubernetes", choices=MINORS, default=NEWEST, help="minor version of Kubernetes (default: %(default)s)"
    )
    parser.add_argument(
        "--image",
        type=Path,
        action="append",
        default=[],
        metavar="ARCHIVE",
        help="image for its pods, as docker saves it",
    )
    options = parser.parse_args()
    for number in SIGNALS:
        signal.signal(number, _stop)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # `make` may be killed, and then could not end us
    ready = False
    try:
        if options.command == "build":
            prepare(_report, options.kubernetes)
            return 0
        if options.command == "helm":  # for checks of the chart: no root, no Kubernetes
            ensure_built(_report, (HELM,))
            link_programs(HOME / "bin", (HELM,))
            return 0
        with running_cluster(options.home.resolve(), _report, options.image, options.kubernetes) as cluster:
            ready = True
            _report("ends with Ctrl-C; logs in " + str(cluster.logs))
            print(f"KUBECONFIG={cluster.kubeconfig}", flush=True)
            while True:
                cluster.check()
                time.sleep(0.5)
    except Stopped as stopped:
        _report(f"ended by {stopped}")
        return 0 if ready else 128 + stopped.number
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return error.exit_code


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for each in SIGNALS:  # the way out is short: no second signal cuts it off
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(number)


def _report(line: str) -> None:
    print(f"cluster: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
