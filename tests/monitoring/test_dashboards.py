"""Each query of the dashboards and alerts returns data from a real Prometheus that scrapes a real engine under load."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from octavo_operator.dashboards import DASHBOARDS
from octavo_operator.render.prometheusrule import BASELINE, rule_group
from tests.cluster.waiting import wait_until
from tests.monitoring.prometheus import IDENTITY, Prometheus, prometheus

ROOT = Path(__file__).parents[2]
CHOICES = {"$namespace": "llm", "$llmservice": "smollm2", "$__rate_interval": "10m", "[1h:15s]": "[1h:1s]"}
"""What Grafana fills in, an interval in which requests end also on a busy machine; and a step of subqueries in which so
young a Prometheus has something."""
QUERIES = [
    pytest.param(query.expression, id=f"{name}-{panel.title}-{number}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard.panels
    for number, query in enumerate(panel.queries)
]
RULES = rule_group(*IDENTITY.values())["rules"]
SELECTOR = re.compile(r"[a-z_:0-9]+\{[^}]*\}")
# Small enough that requests wait, push each other out of memory, and are rejected.
SMALL = ("--num-kv-blocks=24", "--max-num-seqs=3", "--max-model-len=256", "--max-queued-requests=4")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a real engine under load."""
    log_file = tmp_path_factory.mktemp("engine") / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    port = f"--port={address.partition(':')[2]}"
    command = [str(Path(sys.executable).with_name("octavo-engine")), "serve", "smollm2", "--device=cpu", port, *SMALL]
    with log_file.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:

            def ready() -> bool:
                assert process.poll() is None, log_file.read_text()
                try:
                    return httpx2.get(f"http://{address}/health/ready", trust_env=False).is_success
                except httpx2.TransportError:
                    return False

            wait_until(ready, timeout=300, describe=lambda: f"the engine is ready:\n{log_file.read_text()}", every=0.3)
            with users(address):
                yield address
                process.kill()
        finally:
            process.kill()


@pytest.fixture(scope="module")
def watched(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen the engine under load for a while, and still does."""
    with prometheus(engine, tmp_path_factory.mktemp("prometheus")) as found:
        seen = " and on () ".join(
            (
                "count_over_time(octavo_requests_running[10s]) > 7",
                BASELINE,
                "octavo_preemptions_total > 0",
                "sum(octavo_requests_rejected_total) > 0",
                "sum(rate(octavo_requests_total[10m])) > 0",  # an answer ended between two scrapes, so that rates exist
            )
        )
        wait_until(lambda: found.query(seen), timeout=300, describe=f"once {seen}", every=0.5)
        yield found


@contextmanager
def users(engine: str) -> Iterator[None]:
    """Nine users who ask until the engine is gone."""
    stop = threading.Event()
    threads = [threading.Thread(target=_ask, args=(engine, number, stop)) for number in range(9)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _ask(engine: str, number: int, stop: threading.Event) -> None:
    """One user after another question: short ones that end, and long ones that need much memory."""
    asked = {"prompt": f"User {number} tells a story.", "max_tokens": 8 if number < 3 else 200, "ignore_eos": True}
    gone = suppress(httpx2.TransportError)
    with gone, httpx2.Client(base_url=f"http://{engine}", timeout=300, trust_env=False) as http:
        while not stop.is_set():
            answer = http.post("/v1/completions", json={"model": "smollm2", **asked})
            if answer.status_code != 200:
                stop.wait(0.2)


@pytest.mark.parametrize("expression", QUERIES)
def test_every_panel_has_data(expression: str, watched: Prometheus) -> None:
    for variable, choice in CHOICES.items():
        expression = expression.replace(variable, choice)
    assert "$" not in expression
    assert watched.values(expression), expression


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.get("alert", "baseline")) for rule in RULES])
def test_every_alert_reads_series_that_exist(rule: dict[str, Any], watched: Prometheus) -> None:
    watched.query(rule["expr"])
    selectors = SELECTOR.findall(rule["expr"])
    assert selectors
    for selector in selectors:
        assert watched.values(selector), selector


def test_the_rules_are_evaluated_without_a_complaint(watched: Prometheus) -> None:
    (group,) = watched.http.get("/api/v1/rules").json()["data"]["groups"]
    assert {rule["name"]: rule.get("lastError", "") for rule in group["rules"] if rule["health"] != "ok"} == {}
    assert len(group["rules"]) == len(RULES)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_files_are_what_the_code_makes(name: str) -> None:
    for folder in ("manifests/dashboards", "charts/octavo/files/dashboards"):
        assert (ROOT / folder / f"{name}.json").read_text() == DASHBOARDS[name].as_json()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap_and_have_ids_of_their_own(name: str) -> None:
    panels = json.loads(DASHBOARDS[name].as_json())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
