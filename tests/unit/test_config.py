"""Settings are strict: every fault is one sentence that names the file, the key and the cure."""

from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuscale import config
from gpuscale.errors import ConfigError
from gpuscale.settings import ControllerSettings, ExporterSettings, Policy

FAULTS = [
    (ControllerSettings, "defaults: {server: custom}", "need each other"),
    (ControllerSettings, "defaults: {server: ray-serve, mode: act}", "only recommends"),
    (ExporterSettings, "listn: ':1'", "unknown key `listn`"),
    (ExporterSettings, "periods: {fst_s: 1}", "unknown key `periods.fst_s`"),
    (
        ExporterSettings,
        "periods: {fast_s: fast}",
        "key `periods.fast_s`: expected `float`, got `str`",
    ),
    (ExporterSettings, "periods: {fast_s: 0}", "key `periods.fast_s`: expected `float` > 0.0"),
    (
        ExporterSettings,
        "nvml: simulated",
        "key `nvml`: expected auto, off or simulated:CARDxCOUNT",
    ),
    (
        ExporterSettings,
        "listen: ':70000'",
        "`listen`: expected HOST:PORT or :PORT with a port up to",
    ),
    (
        ExporterSettings,
        "dcgm: {extra_fields: [nope]}",
        "`dcgm.extra_fields[0]`: 'nope' is not one of",
    ),
    (ExporterSettings, "periods: [1]", "key `periods`: expected `mapping`, got `list`"),
    (ExporterSettings, "1: 2", "a key is no text: put it in quotes"),
    (ExporterSettings, "nvml: off\nnvml: auto", "at line 2, column 1 (key `nvml` stands twice)"),
    (ControllerSettings, "policies: {a: {}, b.c: {serve: x}}", "unknown key `policies.b.c.serve`"),
    (
        ControllerSettings,
        "policies: {a: {}, b: {mode: x}}",
        "`policies.b.mode`: 'x' is not one of act, shadow",
    ),
    (ControllerSettings, "policies: {a: {}, b: 3}", "`policies.b`: expected `mapping`, got `int`"),
    (
        ControllerSettings,
        "policies: {a: {min_replicas: 200}}",
        "`policies.a`: min_replicas 200 is above",
    ),
    (ControllerSettings, "policies: {3: {}}", "a key of `policies` is no text"),
    (
        ControllerSettings,
        "workloads: [{namespace: A, name: b}]",
        "key `workloads[0].namespace`: expected a Kubernetes name",
    ),
    (ExporterSettings, "listen: 9400", "key `listen`: expected `str`, got `int`"),
    (ExporterSettings, "a: [", "not valid YAML at line 1, column 5"),
    (ExporterSettings, "- 1", "expected keys and values at the top, found a list"),
    (ControllerSettings, "workloads: [{name: b}]", "key `workloads[0].namespace` is missing"),
    (
        ControllerSettings,
        "workloads: [{namespace: a, name: b, policy: q}]",
        "policy 'q' is not defined",
    ),
    (
        ControllerSettings,
        "workloads: [{namespace: a, name: b, overrides: {risk: 2}}]",
        "workloads[0] (a/b): overrides: key `risk`",
    ),
    (
        ControllerSettings,
        "workloads: [{namespace: a, name: b}, {namespace: a, name: b}]",
        "a/b stands twice",
    ),
    (ControllerSettings, "defaults: {min_replicas: 5, max_replicas: 2}", "min_replicas 5 is above"),
    (ControllerSettings, "defaults: {hold_s: 10}", "hold_s 10 is below stale_after_s 45"),
    (ControllerSettings, "prometheus: {url: 'ftp://x'}", "`prometheus.url`: expected an address"),
]


@pytest.mark.parametrize(("kind", "text", "expected"), FAULTS, ids=[f[1] for f in FAULTS])
def test_each_fault_is_one_sentence_with_file_key_and_cure(
    kind: type, text: str, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(file, kind)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert expected in message
    assert "\n" not in message
    assert "regex" not in message
    assert "[...]" not in message
    assert message.count(": correct") <= 1
    assert caught.value.exit_code == 2


def test_a_value_that_may_hold_a_password_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("prometheus: {url: 'htp://reader:secret@prometheus'}")
    with pytest.raises(ConfigError) as caught:
        config.load(file, ControllerSettings)
    assert "secret" not in str(caught.value)


def test_anchors_and_merges_are_no_repetition(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "defaults: &base {risk: 0.5, capacity: 2}\n"
        "policies: {fast: {<<: *base, capacity: 3}, slow: {<<: *base}}\n"
    )
    read = config.load(file, ControllerSettings)
    assert [read.policies[name].capacity for name in ("fast", "slow")] == [3, 2]


def test_a_missing_file_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file: create it or correct --config"):
        config.load(tmp_path / "absent.yaml", ExporterSettings)


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"\x00\x9f\xff binary")
    with pytest.raises(ConfigError, match="not valid YAML"):
        config.load(file, ExporterSettings)


def test_an_endless_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_bytes(b"#" * (config.SETTINGS_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="not a settings file"):
        config.load(file, ExporterSettings)


def test_off_is_a_word_and_not_false(tmp_path: Path) -> None:
    """The kill switch must work as anybody would write it: YAML 1.1 reads a bare `off` as false."""
    file = tmp_path / "settings.yaml"
    file.write_text("nvml: off\npod_resources: {enabled: false}\n")
    settings = config.load(file, ExporterSettings)
    assert settings.nvml == "off"
    assert settings.pod_resources.enabled is False


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("")
    assert config.load(file, ControllerSettings) == config.load(None, ControllerSettings)


def test_promised_defaults() -> None:
    """An operator relies on these; changing one is a line in the CHANGELOG."""
    exporter = config.load(None, ExporterSettings)
    assert (exporter.listen, exporter.nvml, exporter.periods.fast_s) == (":9400", "auto", 1.0)
    controller = config.load(None, ControllerSettings)
    assert (controller.listen, controller.listen_grpc, controller.tick_s) == (
        ":8080",
        ":6000",
        15.0,
    )
    policy = controller.defaults
    assert policy.mode == "shadow"
    assert policy.risk == pytest.approx(10 / 11)
    assert (policy.min_replicas, policy.max_replicas) == (1, 100)
    assert (policy.stale_after_s, policy.hold_s) == (45.0, 300.0)


def test_overrides_change_one_field_and_keep_the_others() -> None:
    settings = config.convert(
        {
            "policies": {"gold": {"risk": 0.95, "capacity": 4}},
            "workloads": [
                {"namespace": "a", "name": "b", "policy": "gold", "overrides": {"mode": "act"}}
            ],
        },
        ControllerSettings,
        where="test",
    )
    policy = settings.policy_of(settings.workloads[0])
    assert (policy.risk, policy.capacity, policy.mode) == (0.95, 4, "act")


@given(st.builds(Policy, risk=st.floats(0.01, 0.99), min_replicas=st.integers(0, 50)))
def test_a_policy_survives_being_written_and_read(policy: Policy) -> None:
    text = yaml.safe_dump(msgspec.to_builtins(policy))
    assert config.convert(yaml.safe_load(text), Policy, where="test") == policy


@pytest.mark.parametrize(
    ("listen", "expected"),
    [(":9400", ("0.0.0.0", 9400)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:80", ("::1", 80))],
)
def test_listen_addresses(listen: str, expected: tuple[str, int]) -> None:
    assert config.split_listen(listen) == expected
