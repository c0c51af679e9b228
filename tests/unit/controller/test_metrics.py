"""The controller's metrics say what was decided, in the catalog's words, and nothing that is not known."""

from prometheus_client.core import Metric

from gpuscale import catalog
from gpuscale.controller import decide, metrics
from gpuscale.controller.domain import Decision, ReplicaState
from gpuscale.controller.status import FleetStatus, Tally
from gpuscale.settings import Policy
from tests.fakes.statuses import NOW, TICK_S, status_of, workload


def value(families: tuple[Metric, ...], name: str, **labels: str) -> float | None:
    """The one sample with these labels; None where there is none."""
    found = [
        s.value
        for family in families
        for s in family.samples
        if s.name == name and labels.items() <= s.labels.items()
    ]
    assert len(found) <= 1, f"{name}{labels} stands {len(found)} times"
    return found[0] if found else None


def of(status: FleetStatus, tally: Tally | None = None) -> tuple[Metric, ...]:
    return metrics.families(status, tally or Tally())


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
            assert tuple(sample.labels) == declared.labels
    assert value(families, "gpuscale_workload_scale_events_total", direction="up") == 3
    assert value(families, "gpuscale_scaler_requests_total", code="OK") == 9


def test_before_the_first_tick_there_is_a_page() -> None:
    families = metrics.families(None, Tally())

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
