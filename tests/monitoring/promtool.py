"""Checks rules with promtool: which alerts fire after a given series of values."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.monitoring.programs import program


def check(groups: list[dict[str, Any]], folder: Path) -> None:
    """Fails unless promtool accepts the rules, their queries and templates."""
    _promtool("check", "rules", str(_written(groups, folder)))


def firing(
    groups: list[dict[str, Any]], series: dict[str, str], minute: int, expected: list[str], folder: Path
) -> None:
    """Fails with promtool's output unless exactly the alerts `expected` fire at `minute`.

    `series` are complete, with their labels; their values are one a minute, in promtool's notation.
    """
    test = {
        "rule_files": [_written(groups, folder).name],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected],
                    }
                ],
            }
        ],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump(test))
    _promtool("test", "rules", str(folder / "test.yaml"))


def _written(groups: list[dict[str, Any]], folder: Path) -> Path:
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    return folder / "rules.yaml"


def _promtool(*arguments: str) -> None:
    done = subprocess.run([str(program("promtool")), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
