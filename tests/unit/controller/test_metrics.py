"""The controller's metrics say what was decided, in the catalog's words, and nothing that is not known."""

from collections.abc import Sequence

from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from gpuscale import catalog
from gpuscale.controller import decide, metrics
from gpuscale.controller.domain import Decision, ReplicaState
from gpuscale.controller.status import FleetStatus, Tally
from gpuscale.settings import Policy
from tests.fakes.statuses import NOW, TICK_S, status_of, workload


def value(families: Sequence[Metric], name: str, **labels: str) -> float | None:
    """The one sample with these labels; None where there is none."""
    found = [
        s.value
        for family in families
        for s in family.samples
        if s.name == name and labels.items() <= s.labels.items()
    ]
    assert len(found) <= 1, f"{name}{labels} stands {len(found)} times"
    return found[0] if found else None


def of(status: FleetStatus | None, tally: Tally | None = None) -> Sequence[Metric]:
    """The families of a page, as a scraper reads them, the same in both formats."""
    page = metrics.render(status, tally or Tally())
    families = list(text_string_to_metric_families(page.text.decode()))
    read = openmetrics.text_string_to_metric_families(page.openmetrics.decode())  # type: ignore[no-untyped-call]
    openly = list(read)
    assert [f.samples for f in openly] == [f.samples for f in families]
    assert [(f.name, f.type) for f in openly] == [(f.name, f.type) for f in families]
    return families


def test_a_decision_is_published_as_it_was_decided() -> None:
    status = status_of({"llama": 20.0})

    families = of(status)

    llama = {"namespace": "inference", "workload": "llama"}
    assert value(families, "gpuscale_workload_demand", **llama) == 20.0
    assert value(families, "gpuscale_workload_backlog", **llama) == 3.0
    assert (
        value(families, "gpuscale_workload_desired_replicas", **llama) == status.decision.desired[0]
    )
    assert value(families, "gpuscale_workload_held", **llama) == 0.0
    assert value(families, "gpuscale_workload_capacity", source="declared", **llama) == 5.0
    assert value(families, "gpuscale_controller_last_tick_timestamp_seconds") == NOW


def test_what_is_not_known_has_no_series() -> None:
    """No cluster, no reading: neither zeros nor NaN may be scraped."""
    status = status_of({"llama": None})

    families = of(status)

    for name in (
        "gpuscale_workload_demand",
        "gpuscale_workload_backlog",
        "gpuscale_workload_desired_replicas",
        "gpuscale_workload_signal_age_seconds",
        "gpuscale_workload_replicas",
        "gpuscale_workload_planned_replicas",
    ):
        assert value(families, name) is None, name
    assert value(families, "gpuscale_workload_held", workload="llama") == 1.0


def test_replicas_are_published_by_stage() -> None:
    state = ReplicaState(
        key="inference/llama", asked=4, ready=2, starting=1, pending=1, endpoints=(), starts=()
    )
    families = of(status_of({"llama": 20.0}, replicas={"inference/llama": state}))

    for stage, count in (("asked", 4), ("ready", 2), ("starting", 1), ("pending", 1)):
        assert value(families, "gpuscale_workload_replicas", stage=stage) == count


def test_every_family_stands_in_the_catalog_with_its_labels() -> None:
    tally = Tally(
        ticks=3,
        step_s={"decide": 0.01},
        signal_errors={"prometheus": 2},
        scale_events={"inference/llama": (3, 1)},
        actuator_writes={"written": 4},
        scaler_requests={("GetMetrics", "OK"): 9},
        scaler_streams={"StreamIsActive": 1},
        cache_synced={"pods": True},
        cache_age_s={"pods": 4.0},
    )
    families = of(status_of({"llama": 20.0, "mute": None}), tally)

    for family in families:
        for sample in family.samples:
            declared = catalog.FAMILIES[sample.name]
            assert declared.wing == "controller"
            assert set(sample.labels) == set(declared.labels)
            assert family.documentation == declared.help
    assert value(families, "gpuscale_workload_scale_events_total", direction="up") == 3
    assert value(families, "gpuscale_scaler_requests_total", code="OK") == 9


def test_before_the_first_tick_there_is_a_page() -> None:
    families = of(None)

    assert value(families, "gpuscale_controller_build_info") == 1.0
    assert value(families, "gpuscale_controller_ticks_total") == 0.0
    assert value(families, "gpuscale_controller_workloads") is None


def test_a_reason_makes_one_series_though_its_numbers_change() -> None:
    first = metrics.label_text("the signal is 45 s old: check that Prometheus scrapes the pods")
    later = metrics.label_text("the signal is 60 s old: check that Prometheus scrapes the pods")

    assert first == later
    assert len(metrics.label_text("long " * 200)) <= metrics.REASON_CHARS_MAX


def test_a_workload_without_capacity_says_so_and_gives_no_capacity() -> None:
    fleet = [workload("llama", policy=Policy(mode="act"))]
    families = of(status_of({"llama": 20.0}, workloads=fleet))

    assert value(families, "gpuscale_workload_capacity") is None
    assert value(families, "gpuscale_workload_hold_info", workload="llama") == 1.0


def test_of_many_candidates_the_one_in_use_and_the_cheapest_are_published() -> None:
    """A bank of dozens times thousands of workloads would be most of what is scraped."""
    memory = decide.initial_memory(("inference/llama",), TICK_S)
    status = status_of({"llama": 20.0}, memory=memory)
    for i in range(1, 40):
        status = status_of({"llama": 20.0 + i % 7}, now=NOW + i * TICK_S, memory=memory)
    outcome = status.decision.of(0)
    assert isinstance(outcome, Decision)
    assert len(outcome.candidate_costs) > metrics.CANDIDATES_MAX + 1

    published = {
        s.labels["candidate"]: s.value
        for family in of(status)
        for s in family.samples
        if s.name == "gpuscale_workload_candidate_cost"
    }

    assert len(published) == metrics.CANDIDATES_MAX + 1
    assert outcome.candidate in published
    assert min(published.values()) == min(outcome.candidate_costs.values())


def test_a_guard_that_changed_the_plan_has_a_series_and_the_others_have_none() -> None:
    """What runs was asked for by somebody: it stays while demand was seen for a quarter minute only."""
    state = ReplicaState(
        key="inference/llama", asked=9, ready=9, starting=0, pending=0, endpoints=(), starts=()
    )
    status = status_of({"llama": 5.0}, replicas={"inference/llama": state})
    outcome = status.decision.of(0)
    assert isinstance(outcome, Decision)
    changed = {verdict.guard for verdict in outcome.verdicts}
    assert "fresh_start" in changed

    published = {
        s.labels["guard"]
        for family in of(status)
        for s in family.samples
        if s.name == "gpuscale_workload_guard_info"
    }

    assert published == changed


def test_hostile_label_values_stay_within_their_quotes() -> None:
    hostile = 'a"} 1\n# TYPE evil counter\nevil{x="\\'
    fleet = [workload("llama", namespace=hostile)]
    families = of(status_of({"llama": 20.0}, workloads=fleet))

    assert value(families, "gpuscale_workload_demand", namespace=hostile) == 20.0
    assert "evil" not in {family.name for family in families}


def test_the_tick_is_published_for_the_alert_on_late_ones() -> None:
    assert value(of(status_of({"llama": 20.0})), "gpuscale_controller_tick_seconds") == TICK_S
