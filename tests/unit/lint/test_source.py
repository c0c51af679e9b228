"""Manifests are read as the API server reads them, with their lines, and nothing in them can hurt."""

import json
import time

import pytest
import yaml

from gpuscale.errors import InputError
from gpuscale.lint import source

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"


def raws(text: str) -> list[object]:
    return [manifest.raw for manifest in source.objects(text)]


def test_documents_lists_and_typed_lists_give_their_objects() -> None:
    text = (
        f"{POD}---\n---\n# nothing\n---\nfoo: bar\n---\n"
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: b}}\n---\n"
        "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: c}\n"
    )
    found = list(source.objects(text))
    assert [(m.raw["kind"], m.raw["metadata"]["name"]) for m in found] == [
        ("Pod", "a"),
        ("Service", "b"),
        ("Pod", "c"),
    ]
    assert [m.line(("metadata", "name")) for m in found] == [3, 13, 18]


def test_json_is_read_too() -> None:
    assert raws('{"apiVersion": "v1", "kind": "Pod", "spec": {"a": [1, 2.5, null, true]}}') == [
        {"apiVersion": "v1", "kind": "Pod", "spec": {"a": [1, 2.5, None, True]}}
    ]


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("1", 1), ("0x10", 16), ("010", 8), ("1_000", 1000), ("-3", -3), ("1.5", 1.5), ("1e3", "1e3"),
        ("yes", True), ("off", False), ("~", None), ("", None), ("'1'", "1"), ('"yes"', "yes"),
        ("1:30", "1:30"), ("2026-01-01", "2026-01-01"), (".inf", ".inf"), (".nan", ".nan"),
        ("9" * 5000, "9" * 5000), ("!!binary aGk=", "aGk="), ("!custom x", "x"), ("!!python/object:os.system {}", {}),
    ],
)  # fmt: skip
def test_scalars_mean_what_the_api_server_takes_them_for(scalar: str, value: object) -> None:
    (found,) = source.objects(f"{POD}x: {scalar}\n")
    assert found.raw["x"] == value


def test_aliases_and_merges_stand_for_what_they_name() -> None:
    text = f"{POD}a: &a {{x: 1, y: 2}}\nb: *a\nc: {{<<: *a, y: 3}}\nd: {{<<: [*a, {{z: 4}}]}}\n"
    (found,) = source.objects(text)
    assert found.raw["b"] == {"x": 1, "y": 2}
    assert found.raw["c"] == {"x": 1, "y": 3}
    assert found.raw["d"] == {"x": 1, "y": 2, "z": 4}


def test_what_plain_yaml_says_is_what_pyyaml_says() -> None:
    text = (
        f"{POD}spec:\n  a: |\n    two\n    lines\n  b: >-\n    folded\n    text\n  'c d': [x, {{y: z}}]\n"
        "  e: {1: one, true: two}\n"
    )
    (found,) = source.objects(text)
    expected = yaml.safe_load(text)
    assert found.raw["spec"] | {"e": None} == expected["spec"] | {"e": None}
    assert found.raw["spec"]["e"] == {"1": "one", "true": "two"}


def bomb(levels: int, width: int = 10) -> str:
    lines = ["a0: &a0 [lol]"]
    for i in range(1, levels):
        aliases = ", ".join([f"*a{i - 1}"] * width)
        lines.append(f"a{i}: &a{i} [{aliases}]")
    return POD + "\n".join(lines) + "\n"


HOSTILE = {
    "an alias bomb": (bomb(12), "expands to more than"),
    "an alias of itself": (f"{POD}a: &a [*a]\n", "stands for nothing or for itself"),
    "an alias of nothing": (f"{POD}a: *b\n", "alias"),
    "deep lists": (POD + "a: " + "[" * 100_000, "nest"),
    "deep maps": (POD + "a: " + "{a: " * 100_000, "nest"),
    "deep blocks": (
        POD + "\n".join(" " * i + "a:" for i in range(2_000)) + "\n",
        "nested more than",
    ),
    "a broken string": (f'{POD}a: "x\n', "cannot be read as YAML"),
    "a tab": (f"{POD}a:\n\tb: c\n", "cannot be read as YAML"),
    "control characters": (f"{POD}a: \x00\n", "cannot be read as YAML"),
    "a template": (f"{POD}a: {{{{ .Values.a }}}}\nb: {{{{- end }}}}\n", "template of Helm"),
    "an endless number of aliases": (
        POD + "a: &a [" + "x," * 1_000 + "]\nb: [" + "*a," * 1_001 + "]\n",
        "expands to more than",
    ),
    "JSON that is none": ('{"a": ' + " " * source.JSON_FROM_CHARS + "}", "cannot be read as JSON"),
    "deep JSON": ('{"a": ' + "[" * source.JSON_FROM_CHARS, "cannot be read as JSON"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_in_one_sentence_and_in_time(name: str) -> None:
    text, reason = HOSTILE[name]
    began = time.process_time()
    with pytest.raises(InputError, match=reason) as caught:
        list(source.objects(text, "a.yaml"))
    assert time.process_time() - began < 30
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("a.yaml")
    assert len(str(caught.value)) < 500


def test_values_beyond_a_bound_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "VALUES_MAX", 1_000)
    with pytest.raises(InputError, match="has more than 1000 values"):
        list(source.objects(POD + "a: [" + "x," * 1_001 + "]"))


def test_large_json_is_read_as_the_small_is_but_for_its_lines() -> None:
    items = [{"metadata": {"name": f"p{i}"}, "n": 1.5} for i in range(3)]
    small = json.dumps({"apiVersion": "v1", "kind": "PodList", "items": items})
    large = small + " " * source.JSON_FROM_CHARS
    assert raws(small) == raws(large)
    assert [m.line(()) for m in source.objects(large)] == [None, None, None]
    one = json.dumps({"apiVersion": "v1", "kind": "Pod"}) + " " * source.JSON_FROM_CHARS
    assert raws(one) == [{"apiVersion": "v1", "kind": "Pod"}]
    assert raws('{"kind": 1, "items": [2]}' + " " * source.JSON_FROM_CHARS) == []


def test_a_long_anchor_name_is_not_repeated_whole() -> None:
    with pytest.raises(InputError) as caught:
        list(source.objects(f"{POD}a: *{'x' * 10_000}\n"))
    assert len(str(caught.value)) < 500
