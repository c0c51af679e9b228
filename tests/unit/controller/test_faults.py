"""What is wrong is said once when it begins and once when it ends, and shown for as long as it is."""

import time

import pytest
from structlog.testing import capture_logs

from gpuscale.controller.faults import FAULTS_MAX, Faults, without_numbers


def test_a_fault_is_said_when_it_begins_and_when_it_ends() -> None:
    faults = Faults()
    with capture_logs() as logs:
        for _ in range(5):
            faults.set("signal", "Prometheus does not answer: start it")
        shown = faults.sentences()
        faults.set("signal", None)

    assert [entry["event"] for entry in logs] == ["fault began", "fault ended"]
    assert shown == ("Prometheus does not answer: start it",)
    assert faults.sentences() == ()


def test_another_fault_of_the_same_thing_is_said_too() -> None:
    faults = Faults()
    with capture_logs() as logs:
        faults.set("signal", "it does not answer: start it")
        faults.set("signal", "it answers 403: check the token")

    assert [entry["event"] for entry in logs] == ["fault began", "fault began", "fault ended"]
    assert faults.sentences() == ("it answers 403: check the token",)


def test_a_number_that_grows_is_the_same_fault() -> None:
    faults = Faults()
    with capture_logs() as logs:
        for age in (45, 60, 75):
            faults.set("signal", f"the newest sample is {age} s old: check the scrape")

    assert len(logs) == 1
    assert faults.sentences() == ("the newest sample is 75 s old: check the scrape",)


def test_one_cause_behind_many_workloads_is_one_sentence() -> None:
    faults = Faults()
    keys = [f"inference/w{i}" for i in range(1000)]
    with capture_logs() as logs:
        faults.replace("signal", {"Prometheus does not answer": keys})

    assert len(logs) == 1
    assert logs[0]["workloads"] == 1000
    assert faults.sentences()[0].endswith("and 997 more)")


def test_what_is_kept_is_bounded() -> None:
    faults = Faults()
    with capture_logs() as logs:
        faults.replace("signal", {f"pod {chr(97 + i % 26)}{i // 26 * 'x'}": () for i in range(500)})

    assert len(faults.sentences()) <= FAULTS_MAX
    assert len(logs) <= FAULTS_MAX


def test_names_that_begin_with_a_digit_are_different_faults() -> None:
    """Namespaces, models and addresses do; a number that stands alone says how much, and changes."""
    faults = Faults()
    sentences = (
        "7b/chat: key capacity is 'x': write a number",
        "8b/chat: key capacity is 'x': write a number",
        "10.0.0.1:8000 answered 404: check metrics_port",
        "10.0.0.2:8000 answered 404: check metrics_port",
    )
    with capture_logs() as logs:
        faults.replace("declaration", dict.fromkeys(sentences, ()))

    assert faults.sentences() == sentences
    assert len(logs) == len(sentences)


def test_sentences_that_differ_in_numbers_alone_are_one_with_the_workloads_of_all() -> None:
    faults = Faults()
    faults.replace("signal", {"it is 45 s old": ["ai/one"], "it is 60 s old": ["ai/two"]})

    assert faults.sentences() == ("it is 45 s old (ai/one, ai/two)",)


def test_many_faults_of_one_topic_hide_no_other_topic() -> None:
    faults = Faults()
    with capture_logs():
        faults.replace("declaration", {f"ai/{chr(97 + i)}: no": () for i in range(26)})
        faults.replace("write", {f"ai/{chr(97 + i)}: no": () for i in range(26)})
        faults.set("signal", "Prometheus does not answer")

    assert "Prometheus does not answer" in faults.sentences()


@pytest.mark.parametrize(
    "text", ["45", "45.5", "-3", "0.5%", "(12", "1,024", "1e+06", "90%,", "12)."]
)
def test_every_way_to_write_a_number_is_one(text: str) -> None:
    assert "N" in without_numbers(f"it is {text} old")


def test_a_sentence_of_digits_without_end_costs_nothing() -> None:
    begun = time.monotonic()
    without_numbers("1" * 200_000 + "x " + "1," * 100_000 + "x")
    assert time.monotonic() - begun < 1.0
