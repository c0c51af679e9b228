"""What is wrong is said once when it begins and once when it ends, and shown for as long as it is."""

from structlog.testing import capture_logs

from gpuscale.controller.faults import FAULTS_MAX, Faults


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
