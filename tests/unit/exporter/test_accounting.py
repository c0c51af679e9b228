"""Whose the seconds and joules were: every second of every GPU counted once, through whatever happens."""

from collections.abc import Iterable

import pytest

from gpuscale.exporter.accounting import (
    GAP_MAX_S,
    INTERVAL_MAX_S,
    OTHERS,
    ROWS_MAX,
    Gpu,
    Ledger,
)
from gpuscale.exporter.usage import Accounts, Allocation

PRODUCT = "NVIDIA H100 80GB HBM3"


def holder(
    namespace: str, share: float = 1.0, *, replica: str = "", pod: str = "p", mig: str | None = None
) -> Allocation:
    return Allocation(
        uuid=mig or "GPU-0",
        parent_uuid="GPU-0" if mig else None,
        namespace=namespace,
        pod=pod,
        container="c",
        resource="nvidia.com/gpu",
        replica=replica,
        share=share,
    )


def gpu(
    held: Iterable[Allocation] = (),
    *,
    busy_s: float | None = None,
    energy_j: float | None = None,
    known: bool = True,
    uuid: str = "GPU-0",
    **more: dict[str, float],
) -> Gpu:
    return Gpu(
        uuid=uuid,
        product=PRODUCT,
        busy_s=busy_s,
        energy_j=energy_j,
        known=known,
        held=tuple(held),
        **more,  # type: ignore[arg-type] # the test's own words
    )


def seconds(accounts: Accounts, namespace: str) -> dict[str, float]:
    return {a.state: a.seconds for a in accounts.namespaces if a.namespace == namespace}


def node(ledger: Ledger) -> dict[str, float]:
    return dict(ledger.accounts().node)


def test_what_a_snapshot_says_holds_until_the_next_one() -> None:
    ledger = Ledger()
    ledger.step([gpu([holder("chat")])], 100.0)
    ledger.step([gpu()], 101.0)
    ledger.step([gpu()], 103.0)
    assert node(ledger) == {"allocated": 1.0, "unallocated": 2.0, "unknown": 0.0}


def test_while_nobody_knows_who_holds_a_gpu_it_is_unknown_and_not_free() -> None:
    ledger = Ledger()
    ledger.step([gpu(known=False)], 0.0)
    ledger.step([gpu([holder("chat")])], 5.0)
    ledger.step([], 6.0)
    assert node(ledger) == {"allocated": 1.0, "unallocated": 0.0, "unknown": 5.0}


def test_a_snapshot_says_nothing_of_an_hour_in_which_nobody_looked() -> None:
    ledger = Ledger()
    ledger.step([gpu([holder("chat")])], 0.0)
    ledger.step([gpu([holder("chat")])], 3600.0)
    assert node(ledger) == {
        "allocated": INTERVAL_MAX_S,
        "unallocated": 0.0,
        "unknown": 3600.0 - INTERVAL_MAX_S,
    }


def test_active_seconds_are_the_gpus_own_busy_seconds_whatever_the_beat() -> None:
    """The counter moves twice at one snapshot and not at the next: nothing is lost."""
    ledger = Ledger()
    busy = [0.0, 1.0, 1.0, 2.5, 3.0]
    for at, value in enumerate(busy):
        ledger.step([gpu([holder("chat")], busy_s=value)], float(at))
    found = seconds(ledger.accounts(), "chat")
    assert found["active"] + found["idle"] == pytest.approx(4.0)
    assert found["active"] == pytest.approx(3.0, abs=0.5)


def test_without_a_busy_counter_allocated_time_is_unmeasured_and_not_idle() -> None:
    ledger = Ledger()
    ledger.step([gpu([holder("chat")])], 0.0)
    ledger.step([gpu()], 4.0)
    assert seconds(ledger.accounts(), "chat")["unmeasured"] == 4.0
    assert "idle" not in seconds(ledger.accounts(), "chat")


def test_a_mig_instance_is_as_active_as_it_says_itself_or_unmeasured() -> None:
    ledger = Ledger()
    held = [holder("a", 3 / 7, mig="MIG-1"), holder("b", 1 / 7, mig="MIG-2")]
    ledger.step([gpu(held, busy_s=0.0, instance_busy={"MIG-1": 0.5})], 0.0)
    ledger.step([gpu(held, busy_s=7.0)], 7.0)
    assert seconds(ledger.accounts(), "a") == pytest.approx({"active": 1.5, "idle": 1.5})
    assert seconds(ledger.accounts(), "b") == pytest.approx({"unmeasured": 1.0})
    assert node(ledger)["unallocated"] == pytest.approx(3.0)


def test_promise_5_of_a_time_sliced_gpu_each_pod_is_as_active_as_its_processes() -> None:
    ledger = Ledger()
    held = [holder("a", 0.25, replica="0", pod="x"), holder("b", 0.25, replica="1", pod="y")]
    busy = {("a", "x"): 0.20, ("b", "y"): 0.0}
    ledger.step([gpu(held, busy_s=0.0, pod_busy=busy)], 0.0)  # type: ignore[arg-type] # keys are pairs
    ledger.step([gpu(held, busy_s=2.0)], 10.0)
    assert seconds(ledger.accounts(), "a") == pytest.approx({"active": 2.0, "idle": 0.5})
    assert seconds(ledger.accounts(), "b") == pytest.approx({"idle": 2.5})


def test_promise_6_energy_is_split_and_never_copied() -> None:
    ledger = Ledger()
    held = [holder("a", 0.5, replica="0"), holder("b", 0.25, replica="1")]
    ledger.step([gpu(held, energy_j=1_000.0)], 0.0)
    ledger.step([gpu(held, energy_j=1_000.0)], 5.0)
    ledger.step([gpu(held, energy_j=1_800.0)], 10.0)
    assert dict(ledger.accounts().joules) == pytest.approx({"": 200.0, "a": 400.0, "b": 200.0})


def test_energy_follows_who_held_the_gpu_between_two_readings_of_its_counter() -> None:
    ledger = Ledger()
    ledger.step([gpu([holder("a")], energy_j=0.0)], 0.0)
    ledger.step([gpu([holder("b")], energy_j=0.0)], 9.0)
    ledger.step([gpu([holder("b")], energy_j=1_000.0)], 10.0)
    assert dict(ledger.accounts().joules) == pytest.approx({"": 0.0, "a": 900.0, "b": 100.0})


def test_a_driver_that_is_loaded_anew_starts_its_counter_over_and_ours_goes_on() -> None:
    ledger = Ledger()
    ledger.step([gpu([holder("a")], energy_j=5_000.0)], 0.0)
    ledger.step([gpu([holder("a")], energy_j=5_100.0)], 1.0)
    ledger.step([gpu([holder("a")], energy_j=30.0)], 2.0)
    assert dict(ledger.accounts().joules)["a"] == pytest.approx(130.0)


def test_the_first_reading_of_a_gpu_is_nobodys_energy() -> None:
    ledger = Ledger()
    ledger.step([gpu([holder("a")], energy_j=9e9)], 0.0)
    assert dict(ledger.accounts().joules) == {"": 0.0}


def test_after_a_restart_the_time_away_is_unknown_and_the_counters_go_on() -> None:
    before = Ledger()
    before.step([gpu([holder("a")], energy_j=100.0), gpu(uuid="GPU-1")], 0.0)
    before.step([gpu([holder("a")], energy_j=200.0), gpu(uuid="GPU-1")], 10.0)
    saved = before.saved(wall=1_000.0)

    after = Ledger(saved, wall=1_030.0, now=70.0)
    after.step([gpu([holder("a")], energy_j=500.0), gpu(uuid="GPU-1")], 77.0)
    assert node(after) == {"allocated": 10.0, "unallocated": 10.0, "unknown": 74.0}
    assert dict(after.accounts().joules) == pytest.approx({"a": 100.0, "": 300.0})
    after.step([gpu([holder("a")], energy_j=500.0), gpu(uuid="GPU-1")], 78.0)
    assert node(after)["allocated"] == 11.0


@pytest.mark.parametrize("now", [900.0, 1_000.0 + GAP_MAX_S + 1])
def test_a_clock_that_cannot_be_believed_adds_no_time(now: float) -> None:
    before = Ledger()
    before.step([gpu()], 0.0)
    after = Ledger(before.saved(wall=1_000.0), wall=now)
    assert node(after)["unknown"] == 0.0


def test_namespaces_without_end_are_counted_together_and_no_second_is_lost() -> None:
    ledger = Ledger()
    for number in range(ROWS_MAX + 100):
        ledger.step([gpu([holder(f"ns-{number}")])], float(number))
    accounts = ledger.accounts()
    assert len({a.namespace for a in accounts.namespaces}) == ROWS_MAX + 1
    assert sum(a.seconds for a in accounts.namespaces) == pytest.approx(ROWS_MAX + 99)
    assert seconds(accounts, OTHERS)["unmeasured"] == pytest.approx(99)
