"""The HPA's arithmetic: what AverageValue with target 1 makes of desired replicas."""

import pytest

from gpuscale.simulation.hpa import Hpa, HpaBehavior

FOLLOWING = HpaBehavior.of(
    {
        "minReplicaCount": 0,
        "maxReplicaCount": 100,
        "advanced": {
            "horizontalPodAutoscalerConfig": {
                "behavior": {
                    "scaleUp": {
                        "tolerance": "0",
                        "policies": [
                            {"type": "Percent", "value": 900, "periodSeconds": 15},
                            {"type": "Pods", "value": 20, "periodSeconds": 15},
                        ],
                    },
                    "scaleDown": {
                        "stabilizationWindowSeconds": 60,
                        "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}],
                    },
                }
            }
        },
    }
)


@pytest.mark.parametrize(("current", "value"), [(10, 11), (20, 22), (24, 22), (88, 89)])
def test_the_default_tolerance_swallows_small_steps_for_ever(current: int, value: int) -> None:
    hpa = Hpa(HpaBehavior())
    assert hpa.sync(now=0.0, current=current, value=value) == current


@pytest.mark.parametrize(("current", "value"), [(10, 11), (20, 22), (88, 89)])
def test_tolerance_zero_follows_every_step_up(current: int, value: int) -> None:
    assert Hpa(FOLLOWING).sync(now=0.0, current=current, value=value) == value


def test_an_unknown_metric_holds() -> None:
    assert Hpa(FOLLOWING).sync(now=0.0, current=7, value=None) == 7


def test_default_policies_throttle_a_jump_and_wide_ones_do_not() -> None:
    assert Hpa(HpaBehavior()).sync(now=0.0, current=1, value=12) == 5
    assert Hpa(FOLLOWING).sync(now=0.0, current=1, value=12) == 12


def test_scale_down_waits_for_the_stabilization_window() -> None:
    hpa = Hpa(FOLLOWING)
    assert hpa.sync(now=0.0, current=8, value=8) == 8
    assert hpa.sync(now=30.0, current=8, value=3) == 8
    assert hpa.sync(now=61.0, current=8, value=3) == 6


def test_scale_down_removes_no_more_per_period_than_the_policy_allows() -> None:
    hpa = Hpa(FOLLOWING)
    seen, current = [], 8
    for now in range(0, 300, 15):
        current = hpa.sync(now=float(now), current=current, value=1)
        seen.append(current)
    assert seen[0] == 6
    assert all(before - after <= 2 for before, after in zip(seen, seen[4:], strict=False))
    assert current == 1


def test_defaults_are_kubernetes_own_where_a_scaled_object_says_nothing() -> None:
    assert HpaBehavior.of({}) == HpaBehavior()


def test_bounds_hold_whatever_the_metric_says() -> None:
    hpa = Hpa(HpaBehavior(min_replicas=2, max_replicas=6, up_pods=50))
    assert hpa.sync(now=0.0, current=3, value=40) == 6
    assert hpa.sync(now=1000.0, current=3, value=0) == 2


def test_a_target_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="target must be positive"):
        Hpa(FOLLOWING).sync(now=0.0, current=1, value=1, target=0.0)
