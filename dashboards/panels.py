"""The few shapes of panel that all dashboards are made of, over Grafana's own builders.

Every panel has a title, a sentence that says how to read it, a unit, and queries on the data source
that the reader chooses. Identifiers count up, so that a dashboard's JSON is the same at every build.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
GRID = 24
"""Columns of Grafana's grid."""

Tone = Literal["neutral", "bad-above-zero", "bad-below-one", "share"]
"""How a stat is coloured: not at all, red above 0, red below 1, or amber and red near 1."""

_STEPS: dict[Tone, tuple[tuple[float | None, str], ...]] = {
    "neutral": ((None, "text"),),
    "bad-above-zero": ((None, "green"), (1, "red")),
    "bad-below-one": ((None, "red"), (1, "green")),
    "share": ((None, "green"), (0.9, "orange"), (0.98, "red")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression and the legend of its series."""

    expr: str
    legend: str = ""


class Board:
    """A dashboard under construction."""

    def __init__(self, *, uid: str, title: str, description: str) -> None:
        self._numbers = count(1)
        self._builder = (
            build.Dashboard(title)
            .uid(uid)
            .description(description)
            .tags(["gpuscale"])
            .timezone("browser")
            .refresh("30s")
            .time("now-3h", "now")
            .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
            .link(
                build.DashboardLink("gpuscale")
                .type(dashboard.DashboardLinkType.DASHBOARDS)
                .tags(["gpuscale"])
                .as_dropdown(True)
                .keep_time(True)
                .include_vars(True)
            )
            .with_variable(
                build.DatasourceVariable("datasource").label("Data source").type("prometheus")
            )
        )

    def variable(self, name: str, label: str, query: str, *, multi: bool) -> None:
        """A variable from `label_values(…)`; one with `multi` has All, which also matches no label."""
        variable = (
            build.QueryVariable(name)
            .label(label)
            .datasource(SOURCE)
            .query({"query": query, "refId": name})
            .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
            .multi(multi)
            .include_all(multi)
        )
        if multi:
            variable = variable.all_value(".*").current(
                dashboard.VariableOption(selected=True, text=["All"], value=["$__all"])
            )
        self._builder = self._builder.with_variable(variable)

    def cluster(self, metric: str) -> None:
        """The variable `cluster`, from the labels of `metric`."""
        self.variable("cluster", "Cluster", f"label_values({metric}, cluster)", multi=True)

    def nodes(self) -> None:
        """The variable `node`: those that have a GPU."""
        query = 'label_values(gpuscale_gpu_info{cluster=~"$cluster"}, node)'
        self.variable("node", "Node", query, multi=True)

    def namespaces(self, selector: str) -> None:
        """The variable `namespace`, from the labels of what is selected."""
        self.variable("namespace", "Namespace", f"label_values({selector}, namespace)", multi=True)

    def row(self, title: str) -> None:
        """What follows belongs under this heading."""
        self._builder = self._builder.with_row(build.Row(title).id(next(self._numbers)))

    def stat(
        self,
        title: str,
        description: str,
        query: str,
        *,
        unit: str = "short",
        tone: Tone = "neutral",
        width: int = 4,
    ) -> None:
        """One number: the value of now."""
        panel = (
            stat.Panel()
            .text_mode(common.BigValueTextMode.VALUE)
            .graph_mode(common.BigValueGraphMode.NONE)
            .color_mode(common.BigValueColorMode.VALUE)
            .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
            .thresholds(_thresholds(tone))
        )
        shaped = self._shape(panel, title, description, unit, width=width, height=4)
        self._builder = self._builder.with_panel(shaped.with_target(_query(Query(expr=query), 0)))

    def series(
        self,
        title: str,
        description: str,
        queries: Sequence[Query],
        *,
        unit: str,
        width: int = 12,
        stacked: bool = False,
        bounds: tuple[float | None, float | None] = (0, None),
        band: tuple[str, str] | None = None,
        steps: Sequence[str] = (),
    ) -> None:
        """Lines over time. `band`: legends of the (upper, lower) line to fill between; `steps`: drawn as stairs."""
        panel = (
            timeseries.Panel()
            .line_width(1)
            .fill_opacity(25 if stacked else 0)
            .show_points(common.VisibilityMode.NEVER)
            # A gap in the data is a gap in the line.
            .span_nulls(False)
            .legend(
                common_builder.VizLegendOptions()
                .show_legend(True)
                .display_mode(common.LegendDisplayMode.TABLE)
                .placement(common.LegendPlacement.BOTTOM)
                .calcs(["lastNotNull", "max"])
            )
            .tooltip(
                common_builder.VizTooltipOptions()
                .mode(common.TooltipDisplayMode.MULTI)
                .sort(common.SortOrder.DESCENDING)
            )
        )
        low, high = bounds
        panel = panel if low is None else panel.min(low)
        panel = panel if high is None else panel.max(high)
        if stacked:
            panel = panel.stacking(
                common_builder.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
            )
        if band is not None:
            panel = panel.override_by_name(
                band[0],
                [_property("custom.fillBelowTo", band[1]), _property("custom.fillOpacity", 20)],
            )
        for legend in steps:
            panel = panel.override_by_name(
                legend, [_property("custom.lineInterpolation", "stepAfter")]
            )
        shaped = self._shape(panel, title, description, unit, width=width, height=8)
        for i, query in enumerate(queries):
            shaped = shaped.with_target(_query(query, i))
        self._builder = self._builder.with_panel(shaped)

    def timeline(
        self,
        title: str,
        description: str,
        queries: Sequence[Query],
        *,
        states: dict[str, tuple[str, str]],
        width: int = 12,
    ) -> None:
        """States over time; `states` maps a value to its (text, colour)."""
        mapping = dashboard.ValueMap(
            options={
                value: dashboard.ValueMappingResult(text=text, color=color, index=i)
                for i, (value, (text, color)) in enumerate(states.items())
            }
        )
        panel = (
            statetimeline.Panel()
            .show_value(common.VisibilityMode.AUTO)
            .merge_values(True)
            .mappings([mapping])
            .legend(common_builder.VizLegendOptions().show_legend(False))
        )
        shaped = self._shape(panel, title, description, "none", width=width, height=8)
        for i, query in enumerate(queries):
            shaped = shaped.with_target(_query(query, i))
        self._builder = self._builder.with_panel(shaped)

    def table(
        self,
        title: str,
        description: str,
        columns: Sequence[tuple[str, str, str]],
        *,
        keys: Sequence[str],
        height: int = 9,
    ) -> None:
        """A row per combination of `keys`, a column per (heading, unit, instant query)."""
        panel = table.Panel().override_by_regexp(".*", [_property("custom.filterable", True)])
        order = {key: i for i, key in enumerate(keys)}
        names = {}
        for i, (heading, unit, _) in enumerate(columns):
            field = f"Value #{_reference(i)}"
            names[field] = heading
            order[field] = len(order)
            panel = panel.override_by_name(heading, [_property("unit", unit)])
        panel = panel.with_transformation(dashboard.DataTransformerConfig("merge", options={}))
        panel = panel.with_transformation(
            dashboard.DataTransformerConfig(
                "organize",
                options={
                    "excludeByName": {"Time": True},
                    "indexByName": order,
                    "renameByName": names,
                },
            )
        )
        shaped = self._shape(panel, title, description, "short", width=GRID, height=height)
        for i, (_, _, expr) in enumerate(columns):
            shaped = shaped.with_target(
                _query(Query(expr=expr), i).instant().format(PromQueryFormat.TABLE)
            )
        self._builder = self._builder.with_panel(shaped)

    def done(self) -> dashboard.Dashboard:
        """The dashboard."""
        return self._builder.build()

    def _shape(
        self, panel: Any, title: str, description: str, unit: str, *, width: int, height: int
    ) -> Any:
        """What every panel has. The builders share these methods and no base class that says so."""
        return (
            panel.id(next(self._numbers))
            .title(title)
            .description(description)
            .datasource(SOURCE)
            .unit(unit)
            .span(width)
            .height(height)
        )


def _reference(index: int) -> str:
    """A, B, C, … for a panel's queries."""
    return chr(ord("A") + index)


def _query(query: Query, index: int) -> prometheus.Dataquery:
    built = prometheus.Dataquery().expr(query.expr).ref_id(_reference(index)).range()
    built = built.datasource(SOURCE)
    return built.legend_format(query.legend) if query.legend else built


def _property(name: str, value: object) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue(id_val=name, value=value)


def _thresholds(tone: Tone) -> build.ThresholdsConfig:
    steps = [dashboard.Threshold(value=value, color=color) for value, color in _STEPS[tone]]
    return build.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)
