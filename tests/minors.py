"""`make test-minors`: lints the chart for each supported Kubernetes, and runs some cluster tests on older ones.

    python -m tests.minors [MINOR …]

The default is each older minor version in `cluster.build.MINORS`; the newest runs in `make test`. Exit code: 0 if all
succeeded.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.cluster.build import HELM, MINORS, NEWEST, ensure_built, program
from tests.cluster.errors import ClusterError
from tests.cluster.layout import CHECKOUT

SUPPORTED = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36")
"""What Chart.yaml's kubeVersion admits, up to the newest."""
CHART = CHECKOUT / "charts" / "octavo"
LIFE, AUTOSCALING, RIGHTS, REFUSALS, CHART_TESTS, NODE = (
    f"tests/cluster/test_{name}.py"
    for name in (
        "llmservice_life",
        "llmservice_autoscaling",
        "llmservice_rights",
        "llmservice_refusals",
        "llmservice_chart",
        "node",
    )
)
SELECTION = (
    f"{NODE}::test_the_links_in_the_checkout_work_from_the_hosts_shell",
    CHART_TESTS,
    f"{LIFE}::test_from_apply_to_deletion",
    f"{AUTOSCALING}::test_replicas_follow_the_load_and_no_answer_is_lost",
    f"{AUTOSCALING}::test_the_metrics_api_answers_users_through_the_api_server_alone",
    RIGHTS,
    REFUSALS,
)
"""Installation, a model from apply to deletion, scaling through the metrics API, the guard, and the CRD's rules."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.minors", description=__doc__.partition("\n")[0])
    older = [minor for minor in MINORS if minor != NEWEST]
    parser.add_argument("minors", nargs="*", metavar="MINOR", help=f"of {', '.join(MINORS)} (default: {older})")
    parser.add_argument("--pytest", action="append", default=[], metavar="ARGUMENT", help="passed to pytest")
    options = parser.parse_args(arguments)
    ensure_built(_say, (HELM,))
    failed = [*_chart_faults()]
    for minor in options.minors or older:
        _say(f"Kubernetes {minor}")
        command = [sys.executable, "-m", "pytest", f"--kubernetes={minor}", *options.pytest, *SELECTION]
        if subprocess.run(command, cwd=CHECKOUT, check=False).returncode:
            failed.append(f"tests on Kubernetes {minor}")
    for each in failed:
        _say(f"failed: {each}")
    return int(bool(failed))


def _chart_faults() -> list[str]:
    """Lint and render the chart for each supported version, with its defaults and with each file of `ci/`."""
    helm, faults = str(program("helm")), []
    for minor in SUPPORTED:
        version = f"--kube-version={minor}.0"
        for values in ([], *(["-f", str(file)] for file in sorted((CHART / "ci").glob("*.yaml")))):
            for command in (["lint", "--strict", "--quiet"], ["template", "octavo"]):
                done = subprocess.run(
                    [helm, *command, str(CHART), version, *values], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    faults.append(f"helm {' '.join([*command, version, *values])}: {done.stdout}{done.stderr}")
    _say(f"helm lint and helm template of the chart for {', '.join(SUPPORTED)}: {len(faults)} failures")
    return faults


def _say(line: str) -> None:
    print(f"minors: {line}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ClusterError as error:
        print(f"minors: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
