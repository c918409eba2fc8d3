"""Queries in panels: of ClickHouse's plugin and of Prometheus, and SQL that several boards use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grafana_foundation_sdk.builders.prometheus import Dataquery as PrometheusQuery
from grafana_foundation_sdk.cog import builder, variants
from grafana_foundation_sdk.models import dashboard as model

CLICKHOUSE = model.DataSourceRef(type_val="grafana-clickhouse-datasource", uid="gangline")
PROMETHEUS = model.DataSourceRef(type_val="prometheus", uid="gangline-prometheus")
PLUGIN = "4.0.0"
"""The form of the ClickHouse plugin's queries."""


Shape = Literal["timeseries", "table", "logs"]
_FORMATS: Mapping[Shape, int] = {"timeseries": 0, "table": 1, "logs": 2}

JOB_LINK = "/d/gangline-job?var-run=${__value.raw}&${__url_time_range}"
"""From a job's id to its dashboard."""
RUNNING = "('scheduled', 'initializing', 'running', 'checkpointing')"
"""States in which a job has its GPUs, as the right side of IN."""
SAMPLED = """$__timeFilter(time) AND ingested >= $__fromTime
AND sequence % greatest(1, intDiv($__interval_s, 10)) = 0"""
"""Heartbeats of the time range: about ten of each node in an interval, from parts of that time."""
MEASURED = """$__timeFilter(time) AND ingested >= $__fromTime
AND (isNotNull(network_receive_mb_s) OR isNotNull(disk_free_gb))"""
"""Heartbeats with a reading of the node's use: one each 30 s."""
OF_TEAMS = "$__conditionalAll(team IN (${team:singlequote}), $team)"
"""Rows of the chosen teams; all rows while All is chosen, also where there is no team."""


@dataclass(frozen=True)
class Sql(variants.Dataquery, builder.Builder[variants.Dataquery]):
    """A query of the ClickHouse plugin; the SDK has no type for it."""

    text: str
    shape: Shape = "table"

    def build(self) -> Sql:
        """See Builder."""
        return self

    def to_json(self) -> dict[str, object]:
        """As the plugin's version 4 writes it."""
        return {
            "refId": "A",
            "datasource": CLICKHOUSE,
            "editorType": "sql",
            "pluginVersion": PLUGIN,
            "queryType": self.shape,
            "format": _FORMATS[self.shape],
            "rawSql": " ".join(self.text.split()),
        }


def prom(expression: str, legend: str = "") -> PrometheusQuery:
    """A query of Prometheus; `legend` names its series."""
    query = PrometheusQuery().expr(" ".join(expression.split()))
    return query.legend_format(legend or "__auto").range()


Query = str | PrometheusQuery | Sequence[PrometheusQuery]
"""SQL text, or queries of Prometheus."""
