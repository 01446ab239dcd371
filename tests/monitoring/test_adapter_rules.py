"""The queries that prometheus-adapter makes with its values file give the same numbers as Octavo's own metrics API."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from octavo_operator.api.names import IN_FLIGHT_METRIC, WAITING_METRIC
from tests.monitoring.programs import program

VALUES = Path(__file__).parents[2] / "manifests" / "prometheus-adapter-values.yaml"
MATCHERS = 'namespace="llm",llmservice="good"'
SERIES = {
    'octavo_requests_waiting{namespace="llm",llmservice="good",pod="good-1",model_name="m"}': 3,
    'octavo_requests_waiting{namespace="llm",llmservice="good",pod="good-2",model_name="m"}': 1,
    'octavo_requests_running{namespace="llm",llmservice="good",pod="good-1",model_name="m"}': 2,
    'octavo_requests_waiting{namespace="llm",llmservice="other",pod="other-1",model_name="m"}': 50,
    'octavo_requests_running{namespace="other",llmservice="good",pod="good-1",model_name="m"}': 50,
}


@pytest.mark.parametrize(("metric", "value"), [(WAITING_METRIC, 4), (IN_FLIGHT_METRIC, 6)])
def test_the_adapters_query_gives_the_load_of_one_service(metric: str, value: int, tmp_path: Path) -> None:
    rules = yaml.safe_load(VALUES.read_text())["rules"]["external"]
    (rule,) = [rule for rule in rules if rule["name"]["as"] == metric]
    expression = rule["metricsQuery"].replace("<<.LabelMatchers>>", MATCHERS)  # as its docs/config.md says
    case = {
        "rule_files": [],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": f"{number}x1"} for name, number in SERIES.items()],
                "promql_expr_test": [
                    {
                        "expr": expression,
                        "eval_time": "1m",
                        "exp_samples": [{"labels": '{llmservice="good"}', "value": value}],
                    }
                ],
            }
        ],
    }
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(case))
    command = [str(program("promtool")), "test", "rules", str(tmp_path / "case.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
