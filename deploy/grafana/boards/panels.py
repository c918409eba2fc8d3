"""Panels, variables and links in this project's style, on the builders of Grafana's own SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    logs,
    stat,
    statetimeline,
    table,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders.prometheus import Dataquery as PrometheusQuery
from grafana_foundation_sdk.cog import builder
from grafana_foundation_sdk.models import common as style
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.xychart import XYShowMode

from boards.queries import CLICKHOUSE, PROMETHEUS, Query, Shape, Sql

TAG = "gangline"
Panel = (
    bargauge.Panel
    | logs.Panel
    | stat.Panel
    | statetimeline.Panel
    | table.Panel
    | timeseries.Panel
    | xychart.Panel
)
Steps = Sequence[tuple[float | None, str]]
"""Colours from a value on; the first value is None."""


def _asked(panel: Any, query: Query, shape: Shape) -> None:
    if isinstance(query, str):
        panel.datasource(CLICKHOUSE).with_target(Sql(query, shape))
        return
    queries = [query] if isinstance(query, PrometheusQuery) else query
    panel.datasource(PROMETHEUS)
    for letter, one in zip("ABCDEFGH", queries, strict=False):
        panel.with_target(one.ref_id(letter))


def steps(values: Steps) -> build.ThresholdsConfig:
    """Thresholds in the panel's unit."""
    made = [model.Threshold(value=value, color=colour) for value, colour in values]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def number(
    title: str,
    query: Query,
    description: str,
    *,
    unit: str = "short",
    colours: Steps = ((None, "text"),),
    span: int = 4,
    decimals: int | None = None,
    none: str = "0",
) -> Panel:
    """One figure, or one word; `none` is shown without rows."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .height(4)
        .span(span)
        .thresholds(steps(colours))
        .no_value(none)
        .color_mode(style.BigValueColorMode.VALUE)
        .graph_mode(style.BigValueGraphMode.NONE)
        .reduce_options(
            # Any column, text too.
            common.ReduceDataOptions().calcs(["lastNotNull"]).fields("/.*/").values(False)
        )
    )
    if decimals is not None:
        panel.decimals(decimals)
    _asked(panel, query, "table")
    return panel


def graph(
    title: str,
    query: Query,
    description: str,
    *,
    unit: str = "short",
    span: int = 12,
    height: int = 8,
    bars: bool = False,
    most: float | None = None,
    colours: Steps = (),
    logarithmic: bool = False,
    zero: bool = True,
) -> Panel:
    """Series over time; `bars` are stacked sums of an interval."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .height(height)
        .span(span)
        .legend(_legend(bars=bars))
        .tooltip(
            common.VizTooltipOptions()
            .mode(style.TooltipDisplayMode.MULTI)
            .sort(style.SortOrder.DESCENDING)
        )
        # Series have points at times of their own, and lines between them.
        .span_nulls(not bars)
        .fill_opacity(60 if bars else 8)
        .show_points(style.VisibilityMode.NEVER if bars else style.VisibilityMode.AUTO)
    )
    if bars:
        panel.draw_style(style.GraphDrawStyle.BARS).stacking(
            common.StackingConfig().mode(style.StackingMode.NORMAL).group("A")
        )
    if zero and not logarithmic:
        panel.axis_soft_min(0)
    if most is not None:
        panel.axis_soft_max(most)
    if logarithmic:
        panel.scale_distribution(
            common.ScaleDistributionConfig().type(style.ScaleDistribution.LOG).log(10)
        )
    if colours:
        panel.thresholds(steps(colours)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(style.GraphThresholdsStyleMode.DASHED)
        )
    _asked(panel, query, "timeseries")
    return panel


def _legend(*, bars: bool) -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(style.LegendDisplayMode.TABLE)
        .placement(style.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["sum"] if bars else ["lastNotNull", "max"])
    )


def rows(
    title: str,
    query: Query,
    description: str,
    *,
    units: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    colours: Mapping[str, Steps] | None = None,
    span: int = 24,
    height: int = 8,
) -> Panel:
    """A table. `units`, `links` (URLs) and `colours` are those of its columns."""
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .height(height)
        .span(span)
        .filterable(True)
        .show_header(True)
    )
    made: dict[str, list[model.DynamicConfigValue]] = {}

    def of(column: str, name: str, value: object) -> None:
        made.setdefault(column, []).append(model.DynamicConfigValue(name, value))

    for column, unit in (units or {}).items():
        of(column, "unit", unit)
    for column, url in (links or {}).items():
        of(column, "links", [{"title": "Open ${__value.text}", "url": url}])
    for column, values in (colours or {}).items():
        of(column, "thresholds", steps(values).build())
        of(column, "custom.cellOptions", {"type": "color-text"})
    for column, properties in made.items():
        panel.override_by_name(column, properties)
    _asked(panel, query, "table")
    return panel


def bars(
    title: str, query: str, description: str, *, unit: str = "short", span: int = 8, height: int = 8
) -> Panel:
    """One horizontal bar for each row: its first column is the name, its second the value."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .height(height)
        .span(span)
        .min(0)
        .orientation(style.VizOrientation.HORIZONTAL)
        .display_mode(style.BarGaugeDisplayMode.BASIC)
        .show_unfilled(False)
        .thresholds(steps(((None, "blue"),)))
        .reduce_options(common.ReduceDataOptions().calcs([]).values(True).limit(25))
    )
    _asked(panel, query, "table")
    return panel


def by_step(title: str, query: str, description: str, *, span: int = 12, height: int = 9) -> Panel:
    """Lines over the training step: columns `step`, `run` and `value`."""
    panel = (
        xychart.Panel()
        .title(title)
        .description(description)
        .height(height)
        .span(span)
        .show(XYShowMode.LINES)
        .with_transformation(
            model.DataTransformerConfig(id_val="partitionByValues", options={"fields": ["run"]})
        )
    )
    _asked(panel, query, "table")
    return panel


def states(
    title: str, query: str, description: str, colours: Mapping[str, str], *, span: int = 24
) -> Panel:
    """States over time, a line for each series; `colours` of the states."""
    options = {
        name: model.ValueMappingResult(color=colour, index=index)
        for index, (name, colour) in enumerate(colours.items())
    }
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .height(5)
        .span(span)
        .merge_values(True)
        .show_value(style.VisibilityMode.AUTO)
        .mappings([model.ValueMap(options=options)])
        .legend(common.VizLegendOptions().show_legend(False))
    )
    _asked(panel, query, "timeseries")
    return panel


def lines_of_text(title: str, query: str, description: str) -> Panel:
    """A log: columns `timestamp`, `body` and `level`."""
    panel = (
        logs.Panel()
        .title(title)
        .description(description)
        .height(10)
        .span(24)
        .show_time(True)
        .wrap_log_message(True)
        .enable_log_details(True)
        .sort_order(style.LogsSortOrder.DESCENDING)
        .dedup_strategy(style.LogsDedupStrategy.NONE)
    )
    _asked(panel, query, "logs")
    return panel


def chosen(
    name: str, label: str, query: str, *, multi: bool = True, every: bool = True, about: str = ""
) -> build.QueryVariable:
    """A variable with the values of a query; `every` offers All, which is then the default."""
    variable = (
        build.QueryVariable(name)
        .label(label)
        .description(about)
        .datasource(CLICKHOUSE)
        .query({"refId": name, "queryType": "sql", "rawSql": " ".join(query.split())})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(multi)
        .include_all(every)
    )
    if every:
        variable.current(model.VariableOption(text="All", value="$__all", selected=True))
    return variable


def written(name: str, label: str, about: str) -> build.TextBoxVariable:
    """A variable that the viewer writes; empty at first."""
    return build.TextBoxVariable(name).label(label).description(about).default_value("")


@dataclass(frozen=True)
class _Target:
    """The query of an annotation; the SDK's type has no field for SQL."""

    query: Sql

    def build(self) -> Any:
        return {**self.query.to_json(), "refId": "annotation"}


def marks(name: str, query: str, colour: str) -> build.AnnotationQuery:
    """Vertical lines in all graphs: columns `time`, `title`, `text`."""
    target: Any = _Target(Sql(query))
    return (
        build.AnnotationQuery()
        .name(name)
        .datasource(CLICKHOUSE)
        .enable(True)
        .icon_color(colour)
        .target(target)
    )


def row(title: str) -> build.Row:
    """A heading over the panels that follow."""
    return build.Row(title)


def board(
    uid: str,
    title: str,
    about: str,
    *,
    variables: Sequence[builder.Builder[model.VariableModel]],
    panels: Sequence[Panel | build.Row],
    annotations: Sequence[build.AnnotationQuery] = (),
    since: str = "now-6h",
    refresh: str = "1m",
) -> model.Dashboard:
    """A dashboard with links to the others, which keep its time and variables."""
    made = (
        build.Dashboard(f"Gangline / {title}")
        .uid(f"gangline-{uid}")
        .description(about)
        .tags([TAG])
        .timezone(style.TimeZoneBrowser)
        .time(since, "now")
        .refresh(refresh)
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .variables(list(variables))
        .annotations(list(annotations))
        .link(
            build.DashboardLink("Gangline")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
    )
    for place, panel in enumerate(panels, start=1):
        if isinstance(panel, build.Row):
            made.with_row(panel.id(place))
        else:
            made.with_panel(panel.id(place))
    return made.build()


def team_variable() -> build.QueryVariable:
    """The teams that have runs."""
    return chosen("team", "Team", "SELECT DISTINCT team FROM runs ORDER BY team")
