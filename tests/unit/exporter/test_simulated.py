"""The simulated driver: plausible, repeatable, and as breakable as a real one."""

import threading

import pytest

from gpuscale.errors import ConfigError, DeviceLost, DriverError, DriverMissing, NotSupported
from gpuscale.exporter import simulated
from gpuscale.exporter.collectors import COLLECTORS
from gpuscale.exporter.collectors.utilization import BUSY_SECONDS
from gpuscale.exporter.device import Device


class Time:
    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def everything(device: Device) -> dict[str, float]:
    """Family and labels to value, of one read by every collector."""
    return {
        f"{s.family}{s.labels}": s.value
        for collector in COLLECTORS
        for s in collector.read(device, {}, 1.0).samples
    }


@pytest.mark.parametrize("card", sorted(simulated.CARDS))
def test_every_card_gives_values_within_its_data_sheet(card: str) -> None:
    now = Time()
    driver = simulated.driver(f"simulated:{card}x2", now)
    driver.open()
    sheet = simulated.CARDS[card]
    for device in driver.devices():
        for _ in range(200):
            now.s += 7.0
            if not sheet.mig:
                seen = device.utilization()
                assert seen.busy is not None
                assert 0 <= seen.busy <= 1
            memory = device.memory_bytes()
            assert (memory.reserved is None) == memory.unified == sheet.unified
            assert memory.used + memory.free + (memory.reserved or 0) == memory.total
            assert memory.total == sheet.memory_total_bytes
            assert sheet.power_idle_watts * 0.9 < device.power_watts() <= sheet.power_limit_watts
            assert 20 <= device.temperature_celsius("gpu") <= 90
            if sheet.memory_sensor:
                assert 20 <= device.temperature_celsius("memory") <= 95
            else:
                with pytest.raises(NotSupported):
                    device.temperature_celsius("memory")


def test_the_same_seed_and_times_give_the_same_node() -> None:
    def run(seed: int) -> list[dict[str, float]]:
        now = Time()
        driver = simulated.driver("simulated:h100x2", now, seed=seed)
        rows = []
        for _ in range(20):
            now.s += 5.0
            rows += [everything(device) for device in driver.devices()]
        return rows

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_nodes_of_one_demo_have_gpus_of_their_own() -> None:
    uuids = {
        device.identity.uuid
        for seed in range(3)
        for device in simulated.driver("h100x8", Time(), seed=seed).devices()
    }
    assert len(uuids) == 24


def test_the_caller_sets_what_each_gpu_does() -> None:
    now = Time()
    driver = simulated.driver("simulated:h100x2", now)
    shares = {0: 0.25, 1: 1.0}
    driver.follow(shares.__getitem__, memory_used=lambda index: 0.5)
    now.s += 10.0
    busy = [device.utilization().busy for device in driver.devices()]
    assert busy == [pytest.approx(0.25), pytest.approx(1.0)]
    memory = driver.devices()[0].memory_bytes()
    assert memory.used == pytest.approx((memory.total - (memory.reserved or 0)) / 2, rel=1e-3)


def test_utilization_is_the_mean_since_the_last_read_at_any_period() -> None:
    now = Time()
    driver = simulated.driver("simulated:l4x1", now)
    (device,) = driver.devices()
    driver.device(0).follow(lambda _: 0.6)
    state: dict[str, float] = {}
    collector = COLLECTORS[0]
    collector.read(device, state, None)
    for period_s in (0.3, 1.0, 15.0, 60.0):
        now.s += period_s
        collector.read(device, state, period_s)
    assert state[BUSY_SECONDS] == pytest.approx(0.6 * 76.3, rel=1e-6)


def test_energy_is_the_integral_of_power() -> None:
    now = Time()
    driver = simulated.driver("simulated:t4x1", now)
    (device,) = driver.devices()
    driver.device(0).follow(lambda _: 0.0)
    before = device.energy_joules()
    now.s += 100.0
    idle_watts = simulated.CARDS["t4"].power_idle_watts
    assert device.energy_joules() - before == pytest.approx(100 * idle_watts)
    now.s -= 50.0
    assert device.energy_joules() - before == pytest.approx(100 * idle_watts)


def test_an_outage_of_the_load_is_absent_and_not_idle() -> None:
    now = Time()
    driver = simulated.driver("simulated:h100x1", now)
    (device,) = driver.devices()
    level: list[float | None] = [None]
    driver.device(0).follow(lambda _: level[0])
    now.s += 15.0
    with pytest.raises(NotSupported):
        device.utilization()
    level[0] = 0.9
    now.s += 10.0
    seen = device.utilization()
    assert seen.busy == pytest.approx(0.9)
    assert seen.busy_covered_s == pytest.approx(10.0, abs=0.3)


def test_a_lost_gpu_is_named_and_comes_back() -> None:
    driver = simulated.driver("simulated:h100x3", Time())
    lost = driver.devices()[1]
    driver.device(1).lose()
    with pytest.raises(DeviceLost):
        lost.power_watts()
    assert [d.identity.index for d in driver.devices()] == [0, 2]
    assert driver.lost()[0][0] == 1
    driver.device(1).recover()
    assert len(driver.devices()) == 3
    assert driver.lost() == ()
    assert lost.power_watts() > 0


def test_one_value_can_be_refused_while_the_others_go_on() -> None:
    driver = simulated.driver("simulated:h100x1", Time())
    (device,) = driver.devices()
    driver.device(0).refuse("power")
    driver.device(0).refuse("energy", DriverError("time-out", code=10))
    with pytest.raises(NotSupported):
        device.power_watts()
    with pytest.raises(DriverError) as raised:
        device.energy_joules()
    assert raised.value.code == 10
    assert device.memory_bytes().total > 0


def test_a_call_that_hangs_goes_on_after_recovery() -> None:
    driver = simulated.driver("simulated:h100x1", Time())
    (device,) = driver.devices()
    driver.device(0).hang()
    answered = threading.Event()

    def read() -> None:
        device.power_watts()
        answered.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert not answered.wait(0.05)
    driver.device(0).recover()
    assert answered.wait(5.0)


def test_a_driver_that_is_not_there_says_so_until_it_is() -> None:
    driver = simulated.driver("simulated:h100x1", Time())
    driver.disappear()
    with pytest.raises(DriverMissing):
        driver.open()
    with pytest.raises(DriverMissing):
        driver.devices()
    driver.reappear()
    assert driver.open().driver is not None


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("simulated:b100x1", "a100, a100-mig, geforce, h100, h100-mig, h200, jetson, l4, t4"),
        ("simulated:h100", "simulated:h100x8"),
        ("simulated:h100x0", "1 to 64"),
        ("simulated:h100x99", "1 to 64"),
    ],
)
def test_a_node_that_cannot_be_simulated_is_one_sentence_with_the_cure(
    spec: str, says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        simulated.driver(spec, Time())
    assert says in str(raised.value)
    assert str(raised.value).startswith("nvml: ")
