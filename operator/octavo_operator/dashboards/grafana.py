"""The parts of a dashboard, and its JSON as Grafana imports it (schema version 39, Grafana 10.4 and newer)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA_VERSION = 39
COLUMNS = 24
HEIGHTS = {"stat": 4, "timeseries": 8, "heatmap": 8, "table": 9, "row": 1}
ONE = '{namespace="$namespace",llmservice="$llmservice"}'
"""The series of the service that the reader has chosen."""
ALL = '{namespace=~"$namespace",llmservice=~"$llmservice"}'
"""The series of all services that the reader has chosen."""
WINDOW = "$__rate_interval"


@dataclass(frozen=True)
class Query:
    """One PromQL query; `legend` names its series, with {{label}} for a label's value, or a table's column.

    `unit` is that of the column, where it is another than the panel's.
    """

    expression: str
    legend: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is one of Grafana's; `width` of 24 columns; `warn` and `bad` colour what is larger."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Literal["stat", "timeseries", "heatmap", "table"] = "timeseries"
    width: int = 8
    help: str = ""
    warn: float | None = None
    bad: float | None = None
    stacked: bool = False


@dataclass(frozen=True)
class Section:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Dashboard:
    """A dashboard. `many`: the reader may choose several services at once."""

    name: str
    title: str
    help: str
    sections: Sequence[Section]
    many: bool

    @property
    def panels(self) -> Iterator[Panel]:
        """All panels, in order."""
        for section in self.sections:
            yield from section.panels

    def as_json(self) -> str:
        """Return the file that Grafana imports."""
        return json.dumps(self.as_object(), indent=2, ensure_ascii=False) + "\n"

    def as_object(self) -> dict[str, Any]:
        """Return the dashboard as Grafana has it."""
        return {
            "uid": f"octavo-{self.name}",
            "title": self.title,
            "description": self.help,
            "tags": ["octavo"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": []},
            "links": [_LINKS],
            "templating": {"list": _variables(self.many)},
            "panels": list(_placed(self.sections)),
        }


_LINKS = {"type": "dashboards", "tags": ["octavo"], "title": "Octavo", "asDropdown": True, "keepTime": True}
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _variables(many: bool) -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}
    return [
        source,
        _label_variable("namespace", "Namespace", "octavo_requests_running", many),
        _label_variable("llmservice", "LLMService", 'octavo_requests_running{namespace=~"$namespace"}', many),
    ]


def _label_variable(name: str, title: str, series: str, many: bool) -> dict[str, Any]:
    query = f"label_values({series}, {name})"
    variable: dict[str, Any] = {
        "name": name,
        "label": title,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
    }
    if many:
        variable |= {"allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}}
    return variable


def _placed(sections: Sequence[Section]) -> Iterator[dict[str, Any]]:
    """Yield the panels from left to right and from top to bottom, a heading before each section."""
    number, top = 0, 0
    for section in sections:
        number += 1
        place = {"x": 0, "y": top, "w": COLUMNS, "h": HEIGHTS["row"]}
        yield {"id": number, "type": "row", "title": section.title, "gridPos": place, "collapsed": False, "panels": []}
        top, left, tallest = top + HEIGHTS["row"], 0, 0
        for panel in section.panels:
            if left + panel.width > COLUMNS:
                top, left, tallest = top + tallest, 0, 0
            number += 1
            height = HEIGHTS[panel.kind]
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": height})
            left, tallest = left + panel.width, max(tallest, height)
        top += tallest


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "gridPos": place,
        "datasource": _SOURCE,
        "targets": [_target(panel, query, chr(ord("A") + n)) for n, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _field_defaults(panel), "overrides": []},
        "options": _options(panel),
    }
    if panel.kind == "table":
        made["transformations"] = [{"id": "merge", "options": {}}, _columns(panel)]
        made["fieldConfig"]["overrides"] = [_column_unit(query) for query in panel.queries if query.unit]
    return made


def _target(panel: Panel, query: Query, reference: str) -> dict[str, Any]:
    at_once = panel.kind in ("stat", "table")
    target: dict[str, Any] = {
        "refId": reference,
        "datasource": _SOURCE,
        "expr": query.expression,
        "legendFormat": query.legend or "__auto",
        "instant": at_once,
        "range": not at_once,
    }
    if panel.kind in ("table", "heatmap"):
        target["format"] = panel.kind
    return target


def _field_defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [{"color": "orange", "value": panel.warn}] if panel.warn is not None else []
    steps += [{"color": "red", "value": panel.bad}] if panel.bad is not None else []
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 10,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "line" if len(steps) > 1 else "off"},
        }
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case "stat":
            return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
        case "heatmap":
            return {"calculate": False, "yAxis": {"unit": panel.unit}, "cellGap": 1}
        case "table":
            return {"showHeader": True}
        case "timeseries":
            return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}


def _columns(panel: Panel) -> dict[str, Any]:
    """Return how a table calls its columns: by the legends of its queries."""
    names = {f"Value #{chr(ord('A') + n)}": query.legend for n, query in enumerate(panel.queries)}
    return {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}}


def _column_unit(query: Query) -> dict[str, Any]:
    properties = [{"id": "unit", "value": query.unit}]
    return {"matcher": {"id": "byName", "options": query.legend}, "properties": properties}


def quantile(share: float, histogram: str, matchers: str, by: str = "") -> str:
    """Return a histogram's quantile over the reader's window, of all series or for each value of the labels `by`."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{matchers}[{WINDOW}])))"


def per_second(counter: str, matchers: str, by: str = "") -> str:
    """Return a counter's growth per second, summed up, or for each value of the labels `by`."""
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({counter}{matchers}[{WINDOW}]))"
