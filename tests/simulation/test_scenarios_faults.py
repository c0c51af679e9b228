"""What broken data and broken surroundings did to other autoscalers, lived through with this one.

Numbers as in test_scenarios_demand.py. A failure names the command that plays it again.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from gpuscale.controller.podsample import PodSample
from tests.fakes.podsignal import Spoil
from tests.fakes.story import Row, asked, model, told

KEY = "ml/model"
HOUR = 3600.0
MINUTE = 60.0
NEED = 6
"""Replicas that the calm demand of these stories needs; ten requests/s each."""


@pytest.fixture(autouse=True)
def replay_command(request: pytest.FixtureRequest) -> None:
    """The command that plays this scenario again; pytest shows it where it fails."""
    print(f"replay: pytest '{request.node.nodeid}'")


def calm(now: float) -> float:
    return 10.0 * NEED * 0.9


def never_fewer(rows: list[Row], than: int) -> None:
    assert min(asked(rows)) >= than, f"scaled down while blind: {asked(rows)}"


@pytest.mark.parametrize("level", [1.0, 0.1], ids=["at the peak", "at the trough"])
async def test_04_half_an_hour_without_its_source_moves_nothing(level: float) -> None:
    """The last answer for five minutes, then an error, on which the HPA holds."""
    async with told(model(lambda now: level * calm(now), replicas=NEED)) as story:
        await story.pass_s(HOUR)
        before = story.cluster.asked(KEY)
        story.signal.failures["*"] = "no route to the Prometheus: wait for it"
        blind = await story.pass_s(30 * MINUTE)
        assert set(asked(blind)) == {before}
        assert blind[0].answer == before
        assert blind[-1].answer is None
        story.signal.failures.clear()
        after = await story.pass_s(5 * MINUTE)
    never_fewer(after, before)


async def test_05_half_of_the_pods_unreadable_is_half_of_the_pods_and_not_of_the_demand() -> None:
    def silent(sample: PodSample, now: float) -> Iterable[PodSample]:
        return [] if int(sample.pod.rsplit("-", 1)[1]) % 2 else [sample]

    async with told(model(calm, replicas=NEED)) as story:
        await story.pass_s(HOUR)
        before = story.cluster.asked(KEY)
        story.signal.spoil[KEY] = silent
        during = await story.pass_s(HOUR)
    never_fewer(during, before)
    assert max(asked(during)) <= 1.5 * before, "those that answer still carry no more than before"


def _nan(sample: PodSample, now: float) -> Iterable[PodSample]:
    nan = float("nan")
    return [replace(sample, completed={"requests": nan}, running=nan, waiting=nan)]


def _negative(sample: PodSample, now: float) -> Iterable[PodSample]:
    return [replace(sample, completed={"requests": -1.0}, running=-4.0, waiting=-4.0)]


def _twice(sample: PodSample, now: float) -> Iterable[PodSample]:
    return [sample, sample]


class _Reset:
    """The engine starts again every five minutes: its counter begins at 0."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int], float] = {}

    def __call__(self, sample: PodSample, now: float) -> Iterable[PodSample]:
        assert sample.completed is not None
        count = sample.completed["requests"]
        start = self._begun.setdefault((sample.pod, int(now // 300)), count)
        return [replace(sample, completed={"requests": count - start})]


@pytest.mark.parametrize(
    ("spoil", "readable"),
    [(_nan, False), (_negative, False), (_twice, True), (_Reset(), True)],
    ids=["nan", "negative", "twice", "reset"],
)
async def test_06_garbage_neither_takes_replicas_away_nor_adds_many(
    spoil: Spoil, readable: bool
) -> None:
    """What can still be read of it is demand, by which a replica more or less may be wanted."""
    async with told(model(calm, replicas=NEED)) as story:
        await story.pass_s(HOUR)
        before = story.cluster.asked(KEY)
        story.signal.spoil[KEY] = spoil
        during = await story.pass_s(20 * MINUTE)
    never_fewer(during, before - (1 if readable else 0))
    assert max(asked(during)) <= 1.5 * before


async def test_12_what_is_paused_stands_and_goes_on_from_there() -> None:
    load = {"level": 1.0}
    async with told(model(lambda now: load["level"] * calm(now), replicas=NEED)) as story:
        await story.pass_s(HOUR)
        before = story.cluster.asked(KEY)
        story.annotate(KEY, {"autoscaling.keda.sh/paused": "true"})
        load["level"] = 3.0
        paused = await story.pass_s(20 * MINUTE)
        assert set(asked(paused)) == {before}
        story.annotate(KEY, {})
        resumed = await story.pass_s(20 * MINUTE)
    assert resumed[-1].ready >= 3 * NEED * 0.9


@pytest.mark.parametrize(
    "gone_s", [15.0, 600.0], ids=["a new pod at once", "ten minutes of nobody"]
)
async def test_13_14_a_controller_that_dies_amid_a_surge_takes_nothing_with_it(
    gone_s: float,
) -> None:
    def surge(now: float) -> float:
        return calm(now) * (3.0 if now - begun > 55 * MINUTE else 1.0)

    begun = 0.0
    async with told(model(surge, replicas=NEED)) as story:
        begun = story.cluster.now
        await story.pass_s(HOUR)
        before = story.cluster.asked(KEY)
        assert before > NEED, "the surge is under way"
        await story.stop()
        never_fewer(await story.pass_s(gone_s), before)
        await story.start()
        never_fewer(await story.pass_s(5 * MINUTE), before)
        rest = await story.pass_s(30 * MINUTE)
    assert rest[-1].ready >= 3 * NEED * 0.9


async def test_23_at_zero_without_a_source_nobody_says_that_nothing_waits() -> None:
    async with told(model(calm, replicas=0), fields={KEY: {"min_replicas": 0}}) as story:
        await story.pass_s(10 * MINUTE)
        assert story.control is not None
        status = story.control.controller.status
        assert status is not None
        answer = status.snapshot.answers[KEY]
    assert answer.active is not False
    assert answer.desired is None or answer.desired > 0
