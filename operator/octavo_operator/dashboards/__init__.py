"""Grafana dashboards as code: `octavo-operator dashboard NAME` prints one; manifests/dashboards holds them all."""

from octavo_operator.dashboards.capacity import CAPACITY
from octavo_operator.dashboards.fleet import FLEET
from octavo_operator.dashboards.grafana import Dashboard, Panel, Query
from octavo_operator.dashboards.service import SERVICE

DASHBOARDS = {dashboard.name: dashboard for dashboard in (FLEET, SERVICE, CAPACITY)}

__all__ = ["DASHBOARDS", "Dashboard", "Panel", "Query"]
