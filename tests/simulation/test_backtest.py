"""The yardstick: its figures, what a policy may see, what is judged and what is not."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gpuscale.controller import decide
from gpuscale.controller.domain import Floats
from gpuscale.errors import InputError
from gpuscale.simulation import backtest as backtests
from gpuscale.simulation import report, trace
from gpuscale.simulation.backtest import Outcomes
from gpuscale.simulation.engine import WINDOW_START_S
from gpuscale.simulation.options import Options, cold_starts_of
from gpuscale.simulation.report import PolicyScore
from gpuscale.simulation.trace import Trace
from tests.fakes.decider import ReactiveDecider
from tests.fakes.traces import write_daily

SHARED = Path(__file__).parents[3] / "shared"
AGREEMENT = 0.02
"""Within this share the peers' figures must be the reference simulation's."""

GOLDEN = {
    (60, "oracle"): (1, 0, 427.753),
    (60, "static-peak"): (5.5868, 0, 0),
    (60, "hpa-util@0.7"): (1.30213, 0.0214631, 64.7191),
    (60, "keda-rate@0.7"): (1.299, 0.0125692, 62.6966),
    (60, "keda-rate@1.0"): (0.921742, 0.100421, 57.6404),
    (60, "knative@0.7"): (1.27487, 0.00711959, 1029.44),
    (60, "knative@0.95"): (1.04675, 0.0236819, 1214.49),
    (300, "oracle"): (1, 0, 154.141),
    (300, "static-peak"): (5.23181, 0, 0),
    (300, "hpa-util@0.7"): (1.21115, 0.0503509, 58.8169),
    (300, "keda-rate@0.7"): (1.2181, 0.0443418, 62.8732),
    (300, "keda-rate@1.0"): (0.864264, 0.117196, 57.8028),
    (300, "knative@0.7"): (1.30103, 0.0495845, 1031.32),
    (300, "knative@0.95"): (1.2538, 0.164263, 1260.51),
}
"""What the reference simulation says of the generated trace:
(cold start, policy) -> (replica-hours / clairvoyant's, late share, changes of the ask per day)."""

DAY = 86_400.0
NOON = 1.5 * DAY
"""Windows of gpuscale's own runs are half a day: the core costs milliseconds per tick."""

PEERS = tuple(dict.fromkeys(policy for _, policy in GOLDEN))


@pytest.fixture(scope="module")
def daily(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return trace.load(write_daily(tmp_path_factory.mktemp("traces")))


def scores(outcomes: Outcomes, trace_index: int = 0) -> dict[tuple[float, str], PolicyScore]:
    return {
        (run.cold_start_s, score.policy): score
        for run in outcomes.backtests[trace_index].runs
        for score in run.policies
    }


def flat(n: int = 240, level: float = 50.0, name: str = "flat") -> Trace:
    return Trace(name=name, start_s=0.0, step_s=60.0, values=np.full(n, level))


# ---------------------------------------------------------------- the figures


def test_the_peers_figures_on_a_generated_trace_are_the_references(daily: Trace) -> None:
    options = Options(cold_starts_s=(60.0, 300.0), policies=PEERS)
    found = scores(backtests.backtest([daily], options, ReactiveDecider()))
    assert set(found) == set(GOLDEN)
    for key, (relative, late, events) in GOLDEN.items():
        score = found[key]
        assert score.relative_to_oracle == pytest.approx(relative, rel=AGREEMENT), key
        assert score.late_ratio == pytest.approx(late, rel=AGREEMENT, abs=1e-6), key
        assert score.scale_events_per_day == pytest.approx(events, rel=AGREEMENT), key
        assert score.cost_j == pytest.approx(relative + 10 * late, rel=AGREEMENT), key


def reference() -> ModuleType:
    """The reference simulation, read in place."""
    path = SHARED / "refsim" / "refsim.py"
    if not path.exists():
        pytest.skip(f"the reference simulation is not at {path}")
    spec = importlib.util.spec_from_file_location("refsim", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The reference leaves it to the interpreter to close its files.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("cold_start_s", [60, 180])
def test_the_peers_figures_on_recorded_demand_are_the_references(cold_start_s: int) -> None:
    refsim = reference()
    folder = SHARED / "traces"
    expected = refsim.scores(folder, "az_conv_rps", cold_start_s)
    options = Options(cold_starts_s=(float(cold_start_s),), policies=tuple(expected))
    found = scores(
        backtests.backtest([trace.load(folder / "az_conv_rps.csv")], options, ReactiveDecider())
    )
    for policy, (relative, late, events, cost_j) in expected.items():
        score = found[float(cold_start_s), policy]
        assert score.relative_to_oracle == pytest.approx(relative, rel=AGREEMENT), policy
        assert score.late_ratio == pytest.approx(late, rel=AGREEMENT, abs=1e-6), policy
        assert score.scale_events_per_day == pytest.approx(events, rel=AGREEMENT), policy
        assert score.cost_j == pytest.approx(cost_j, rel=AGREEMENT), policy


def test_a_policy_that_asks_for_what_the_peak_needs_is_never_late_and_never_moves() -> None:
    options = Options(cold_starts_s=(60.0,), policies=("static-peak", "oracle"), capacity=10.0)
    found = scores(backtests.backtest([flat()], options, ReactiveDecider()))
    static, oracle = found[60.0, "static-peak"], found[60.0, "oracle"]
    assert (static.late_ratio, static.scale_events_per_day) == (0.0, 0.0)
    assert static.cost_j == static.relative_to_oracle > 1.0
    assert static.replica_hours / oracle.replica_hours == static.relative_to_oracle
    # 50 units/s with ten per cent of noise: the highest tick needs 10 replicas at 70 %.
    assert static.replica_hours == pytest.approx(static.peak_replicas * (2 * 60 - 1) / 60)


def test_a_case_does_not_depend_on_its_neighbours(daily: Trace) -> None:
    options = Options(
        policies=("gpuscale", "knative", "keda-rate"), cold_starts_s=(300.0,), from_s=DAY, to_s=NOON
    )
    beside = [
        scores(backtests.backtest([other, daily], options, decide), 1)
        for other in (flat(2880), flat(2000, level=7.0, name="other"))
    ]
    assert beside[0] == beside[1]
    alone = scores(backtests.backtest([daily], options, decide))
    for policy in ("knative", "keda-rate"):
        assert alone[300.0, policy] == beside[0][300.0, policy]
    # The core spreads its once-a-minute work over the rows, so the row may move a decision by a
    # few ticks: the score stays where it is.
    ours, theirs = alone[300.0, "gpuscale"], beside[0][300.0, "gpuscale"]
    assert ours.cost_j == pytest.approx(theirs.cost_j, rel=0.02)


def test_the_same_run_twice_says_the_same(daily: Trace) -> None:
    options = Options(
        cold_starts_s=(300.0,), policies=("gpuscale", "oracle"), from_s=DAY, to_s=NOON
    )
    one, two = (backtests.backtest([daily], options, decide) for _ in range(2))
    assert one == two


# ---------------------------------------------------------------- what a policy may see


def decisions(recorded: Trace, *, to_s: float = NOON) -> Floats:
    """What is asked at every tick by every policy but the clairvoyant, shape (policies, ticks)."""
    options = Options(
        capacity=8.0,
        cold_starts_s=(180.0,),
        policies=("gpuscale", "keda-rate", "hpa-util", "knative"),
        from_s=DAY,
        to_s=to_s,
        timeline=True,
    )
    outcomes = backtests.backtest([recorded], options, decide)
    return np.stack([line.desired for line in outcomes.timelines])


def test_no_decision_depends_on_what_comes_after_it(daily: Trace) -> None:
    """The trace is changed beyond recognition from a moment on; up to it nothing is decided
    otherwise, and the tick after it is the first that may be. (The first tick's demand says with
    how many replicas all begin, so it is left as it is.)"""
    before = decisions(daily)
    for changed_bin in (1441, 1500, 2021):
        values = daily.values.copy()
        values[changed_bin:] = 200.0 - values[changed_bin:] / 2
        after = decisions(replace(daily, values=values))
        tick = (changed_bin - 1440) * 4
        same = (before == after).all(axis=0)
        assert same[: tick + 1].all(), changed_bin
        assert not same[tick + 1 :].all(), "the change was seen at all"


def test_what_comes_after_the_window_is_not_even_read(daily: Trace) -> None:
    values = daily.values.copy()
    values[1600:] = 1.0
    until = 1600 * 60.0
    changed = replace(daily, values=values)
    assert (decisions(daily, to_s=until) == decisions(changed, to_s=until)).all()


def test_the_decider_is_shown_the_last_tick_and_the_present_replicas() -> None:
    decider = ReactiveDecider()
    it = flat()
    it.values[150:153] = np.nan
    options = Options(
        cold_starts_s=(60.0,), policies=("gpuscale",), capacity=10.0, timeline=True, replicas_max=9
    )
    line = backtests.backtest([it], options, decider).timelines[0]
    observations = decider.memories[-1].observations
    assert len(observations) == 480
    assert observations[0].now == WINDOW_START_S
    assert observations[0].demand[0] == 50.0, "the last bin of the history"
    np.testing.assert_array_equal(decider.seen()[1:], line.demand[:-1])
    for tick in (1, 100, 300):
        seen = observations[tick]
        assert seen.now == WINDOW_START_S + 15 * tick
        assert seen.backlog[0] == line.backlog[tick - 1]
        assert seen.asked[0] == line.desired[tick - 1]
        assert seen.ready[0] + seen.starting[0] == seen.asked[0]
        assert (seen.capacity[0], seen.lead_s[0]) == (10.0, 60.0)
        assert (seen.policy.min_replicas[0], seen.policy.max_replicas[0]) == (1, 9)


def test_a_hole_is_shown_as_a_hole_that_grows_older() -> None:
    decider = ReactiveDecider()
    it = flat()
    it.values[150:153] = np.nan
    backtests.backtest(
        [it], Options(cold_starts_s=(60.0,), policies=("gpuscale",), capacity=10.0), decider
    )
    blind = decider.memories[-1].observations[121 : 121 + 12]
    assert [o.age_s[0] for o in blind] == [15.0 * k for k in range(1, 13)]
    for observation in blind:
        assert np.isnan(observation.demand[0])
        assert np.isnan(observation.backlog[0])
        assert np.isnan(observation.coverage[0])
        assert observation.ready[0] > 0
    after = decider.memories[-1].observations[133]
    assert (after.age_s[0], after.coverage[0]) == (0.0, 1.0)


def test_everything_before_the_window_is_history_and_missing_stays_missing() -> None:
    decider = ReactiveDecider()
    it = flat()
    it.values[7] = np.nan
    backtests.backtest(
        [it], Options(cold_starts_s=(60.0,), policies=("gpuscale",), from_s=6000.0), decider
    )
    ((times, demand, step_s),) = decider.memories[-1].backfills.values()
    assert step_s == 60.0
    assert len(times) == len(demand) == 100
    assert times[-1] == WINDOW_START_S, "a time is the end of its interval"
    assert times[0] == WINDOW_START_S - 99 * 60
    assert np.flatnonzero(np.isnan(demand)).tolist() == [7]


def test_a_window_from_the_beginning_has_no_history() -> None:
    decider = ReactiveDecider()
    options = Options(cold_starts_s=(60.0,), policies=("gpuscale",), from_s=0.0)
    backtests.backtest([flat()], options, decider)
    assert decider.memories[-1].backfills == {}
    assert np.isnan(decider.seen()[0])
    assert np.isinf(decider.memories[-1].observations[0].age_s[0])


# ---------------------------------------------------------------- what is judged


def test_missing_bins_enter_neither_cost_nor_lateness() -> None:
    options = Options(cold_starts_s=(60.0,), policies=("static-peak",), capacity=10.0)
    whole = scores(backtests.backtest([flat()], options, ReactiveDecider()))
    holed = flat()
    holed.values[200:220] = np.nan
    less = scores(backtests.backtest([holed], options, ReactiveDecider()))
    key = (60.0, "static-peak")
    assert less[key].replica_hours == pytest.approx(whole[key].replica_hours * 99 / 119)


def test_a_window_shorter_than_six_cold_starts_does_not_count_and_says_so(daily: Trace) -> None:
    options = Options(
        cold_starts_s=(60.0, 600.0), policies=("keda-rate",), from_s=86_400.0, to_s=88_200.0
    )
    outcomes = backtests.backtest([daily], options, ReactiveDecider())
    assert [run.cold_start_s for run in outcomes.backtests[0].runs] == [60.0]
    assert outcomes.refused == (
        "generated_daily: the window of 1800 s is shorter than six cold starts of 600 s and does not count",
    )
    with pytest.raises(InputError, match="shorter than six cold starts of 600 s"):
        backtests.backtest([daily], replace(options, cold_starts_s=(600.0,)), ReactiveDecider())


def test_a_window_in_which_nothing_arrives_is_refused() -> None:
    silent = flat()
    silent.values[120:] = 0.0
    with pytest.raises(InputError, match="nothing arrives in the window"):
        backtests.backtest([silent], Options(cold_starts_s=(60.0,)), ReactiveDecider())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"capacity": 1.0, "peak_replicas": 3}, "exclude each other"),
        ({"capacity": 0.0}, "--capacity is 0; it must be above 0"),
        ({"capacity": float("nan")}, "--capacity is nan"),
        ({"peak_replicas": 0}, "--peak-replicas is 0; it must be at least 1"),
        ({"replicas_min": 5, "replicas_max": 4}, "--min 5 and --max 4 do not fit"),
        ({"replicas_min": -1}, "--min -1 and --max 80 do not fit"),
        ({"replicas_min": 0, "replicas_max": 0}, "--min 0 and --max 0 do not fit"),
        ({"cold_starts_s": ()}, "--cold-start names no cold start"),
        ({"cold_starts_s": (60.0, -1.0)}, "--cold-start -1 s is out of range"),
        ({"cold_starts_s": (float("nan"),)}, "--cold-start nan s is out of range"),
        ({"policies": ("keda",)}, "there is no policy 'keda'"),
        ({"policies": ()}, "0 policies were named"),
    ],
)
def test_an_option_that_cannot_be_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Options(**changes)  # type: ignore[arg-type]
    assert sentence in str(caught.value)


def test_cold_starts_are_read_from_a_list() -> None:
    assert cold_starts_of("60, 180,600") == (60.0, 180.0, 600.0)
    with pytest.raises(InputError, match="'60;180' is not a list of seconds"):
        cold_starts_of("60;180")


# ---------------------------------------------------------------- what is said


def test_scale_to_zero_bounds_run(daily: Trace) -> None:
    night = replace(daily, values=np.where(np.arange(2880) % 1440 < 480, 0.0, daily.values))
    options = Options(
        cold_starts_s=(60.0,), replicas_min=0, policies=("keda-rate", "gpuscale"), to_s=NOON
    )
    found = scores(backtests.backtest([night], options, decide))
    assert all(np.isfinite(score.cost_j) for score in found.values())


def test_a_timeline_has_every_tick_and_adds_up_to_the_score(daily: Trace) -> None:
    options = Options(
        cold_starts_s=(60.0, 300.0),
        policies=("knative", "gpuscale"),
        capacity=5.0,
        timeline=True,
        to_s=NOON,
    )
    outcomes = backtests.backtest([daily], options, decide)
    assert [(t.cold_start_s, t.policy) for t in outcomes.timelines] == [
        (60.0, "knative"),
        (60.0, "gpuscale"),
        (300.0, "knative"),
        (300.0, "gpuscale"),
    ]
    found = scores(outcomes)
    for line in outcomes.timelines:
        score = found[line.cold_start_s, line.policy]
        scored = (np.arange(2880) >= line.cold_start_s / 15) & ~np.isnan(line.demand)
        hours = (line.desired + line.draining)[scored].sum() * 15 / 3600
        assert hours == pytest.approx(score.replica_hours)
        assert line.desired[scored].max() == score.peak_replicas
        assert (line.ready + line.starting == line.desired).all()


def test_json_has_the_documented_keys_in_their_order(daily: Trace) -> None:
    options = Options(cold_starts_s=(60.0,), policies=("knative@0.9", "oracle"))
    outcomes = backtests.backtest([daily], options, ReactiveDecider())
    document = json.loads(report.as_json(outcomes.backtests))
    assert list(document) == ["trace", "runs"]
    run = document["runs"][0]
    assert list(run) == [
        "cold_start_s",
        "capacity_per_replica",
        "tick_s",
        "from_s",
        "to_s",
        "policies",
    ]
    assert (run["tick_s"], run["from_s"], run["to_s"]) == (15, 86_400, 172_800)
    assert list(run["policies"][0]) == [
        "policy",
        "replica_hours",
        "relative_to_oracle",
        "late_ratio",
        "cost_j",
        "scale_events_per_day",
        "peak_replicas",
    ]
    assert [entry["policy"] for entry in run["policies"]] == ["knative@0.9", "oracle"]
    two = json.loads(report.as_json(outcomes.backtests * 2))
    assert [entry["trace"] for entry in two] == ["generated_daily"] * 2
