"""Fixtures: one cluster a session, one namespace a test.

With `TEST_KUBECONFIG` set, the cluster it names is used instead, and left as it was found but for what tests leave;
the images `octavo-engine:dev` and `octavo-operator:dev` must be there. The ambient `KUBECONFIG` is never looked at.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import pytest

from . import crds
from .build import HELM, MINORS, NEWEST, ensure_built, kubernetes, link_programs, programs_folder
from .client import Client
from .cluster import prepare, running_cluster
from .layout import HOME
from .report import Report

SESSIONS = HOME / "sessions"
FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kubernetes", choices=MINORS, default=NEWEST, help="minor version of the cluster's Kubernetes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing before the first test: it takes minutes, and a test's time limit is not for that."""
    needed = any(item.get_closest_marker("cluster") for item in session.items)
    if needed and not session.config.option.collectonly:
        with _progress(session.config) as report:
            if os.environ.get("TEST_KUBECONFIG"):
                clients = (kubernetes(_minor(session.config)), HELM)
                ensure_built(report, clients)
                link_programs(programs_folder(_minor(session.config)), clients)
            else:
                prepare(report, _minor(session.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.when in ("setup", "call"):
        item.stash[FAILED] = True
        item.session.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Client]:
    """The cluster, as a client of the namespace `default`."""
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(_session_folder(request.session))
        minor = _minor(request.config)
        given = os.environ.get("TEST_KUBECONFIG")
        if given:
            kubeconfig = Path(given)
        else:
            with _progress(request.config) as report:
                kubeconfig = stack.enter_context(running_cluster(home, report, minor=minor)).kubeconfig
        yield Client(kubeconfig, programs=programs_folder(minor), scratch=home / "scratch")


@pytest.fixture
def namespace(cluster: Client, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of a namespace that only this test uses. When the test fails, its report shows what was there."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    with new_namespace(cluster, words[:40].strip("-")) as client:
        yield client
        if request.node.stash.get(FAILED, False):
            request.node.add_report_section("teardown", "cluster", client.diagnosis())


@contextlib.contextmanager
def new_namespace(cluster: Client, begin: str, labels: Mapping[str, str] | None = None) -> Iterator[Client]:
    """A client of a new namespace whose name begins so."""
    name = f"{begin}-{secrets.token_hex(3)}"
    metadata = {"name": name, "labels": labels or {}}
    cluster.http.post(cluster.path("namespace"), json={"metadata": metadata}).raise_for_status()
    client = cluster.in_namespace(name)
    account = f"service account default in {name}"
    client.wait_until(lambda: client.exists("serviceaccount", "default"), 30, account, every=0.05)
    yield client
    # The end is not waited for, as no other test uses the name; in a namespace that ends no pod comes back.
    cluster.http.delete(cluster.path("namespace", name)).raise_for_status()
    client.http.delete(client.path("pod"), params={"gracePeriodSeconds": 0}).raise_for_status()


@pytest.fixture
def monitoring_crds(cluster: Client) -> Iterator[None]:
    """The Prometheus Operator's PodMonitor and PrometheusRule; its operator does not run."""
    with crds.installed(cluster, crds.PROMETHEUS_OPERATOR):
        yield


@pytest.fixture
def keda_crds(cluster: Client) -> Iterator[None]:
    """KEDA's ScaledObject; its operator does not run."""
    with crds.installed(cluster, crds.KEDA):
        yield


def _minor(config: pytest.Config) -> str:
    """Return the option; it is unknown to a pytest that was given a folder above this one."""
    return str(config.getoption("kubernetes", NEWEST))


@contextlib.contextmanager
def _session_folder(session: pytest.Session) -> Iterator[Path]:
    """A folder for this session's kubeconfig and logs; kept after a failure, until the next session."""
    SESSIONS.mkdir(parents=True, exist_ok=True)
    for old in SESSIONS.iterdir():
        if _unused(old):
            shutil.rmtree(old)
    home = Path(tempfile.mkdtemp(dir=SESSIONS))
    yield home
    if not session.stash.get(FAILED, False):
        shutil.rmtree(home)


def _unused(home: Path) -> bool:
    with contextlib.suppress(OSError), (home / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextlib.contextmanager
def _progress(config: pytest.Config) -> Iterator[Report]:
    """Lines for the person at the terminal, past pytest's capture."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            terminal.ensure_newline() if terminal else None
            print(f"cluster: {line}", flush=True)

    yield report
