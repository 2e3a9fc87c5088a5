"""A task log of a job that changes its phase all the time stays readable."""

from dataclasses import asdict

from eagle3.pipeline.ration import BURST_LINES, Ration


def test_a_job_that_flaps_for_an_hour_gets_a_burst_and_then_a_line_a_minute() -> None:
    ration = Ration()
    told: list[str] = []
    for second in range(0, 3600, 2):
        ration = Ration(**asdict(ration))  # another process goes on
        told += ration.admit([f"phase {second}"], now=1e6 + second)
    assert told[:20] == [f"phase {second}" for second in range(0, 40, 2)]
    assert BURST_LINES + 58 <= len(told) <= BURST_LINES + 60
    assert told[20] == "phase 60 (10 lines before it were held back)"


def test_a_quiet_job_loses_nothing() -> None:
    ration = Ration()
    for minute in range(600):
        assert ration.admit([f"milestone {minute}"], now=60.0 * minute) == [f"milestone {minute}"]


def test_more_lines_at_once_than_are_allowed() -> None:
    ration = Ration()
    assert len(ration.admit([str(number) for number in range(50)], now=10.0)) == BURST_LINES
    assert ration.admit(["next"], now=12.0) == []
    assert ration.admit(["last"], now=72.0) == ["last (31 lines before it were held back)"]
