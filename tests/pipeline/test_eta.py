import random
from dataclasses import asdict

import pytest

from eagle3.pipeline.eta import PaceMeter


def test_unknown_is_none_until_the_warm_up_is_over() -> None:
    meter = PaceMeter()
    assert (meter.pace, meter.eta(10), meter.gap_seconds) == (None, None, None)
    meter.observe(0, 0, 0.0)
    meter.observe(1, 1, 90.0)  # cold files
    assert meter.eta(9) is None
    meter.observe(2, 2, 100.0)
    eta = meter.eta(8)
    assert eta is not None
    assert eta.seconds == pytest.approx(80.0)
    assert eta.error_seconds is None
    meter.observe(3, 3, 110.0)
    assert meter.pace is not None
    assert (meter.pace.item_seconds, meter.pace.fastest, meter.pace.slowest) == pytest.approx((10.0, 10.0, 10.0))


def test_a_pause_counts_by_its_length() -> None:
    meter = PaceMeter()
    for done, at in ((0, 0), (1, 10), (2, 20), (3, 30), (10, 100), (11, 170)):  # 9 items in 150 s after the warm-up
        meter.observe(done, done, at)
    assert meter.pace is not None
    assert 10.0 < meter.pace.item_seconds < 40.0
    assert meter.pace.slowest == 70.0


def test_repeats_and_bursts_are_no_intervals() -> None:
    meter = PaceMeter()
    for at in range(0, 100, 10):
        meter.observe(5, 5, at)
    assert meter.pace is None
    for done, at in ((6, 100.0), (7, 100.5), (8, 101.0), (9, 104.0)):
        meter.observe(done, done, at)
    assert meter.pace is not None
    assert meter.pace.item_seconds == pytest.approx(4.0 / 3)


def test_a_slower_disk_shows_after_a_while() -> None:
    meter, at = PaceMeter(), 0.0
    for done in range(60):
        meter.observe(done, done, at)
        at += 10.0 if done < 30 else 40.0
    assert meter.pace is not None
    assert meter.pace.item_seconds > 35.0


def test_weights_make_the_estimate_of_uneven_items_right() -> None:
    sizes = [1.0] * 10 + [4.0] * 10
    plain, weighted, at = PaceMeter(), PaceMeter(), 0.0
    for done in range(11):
        plain.observe(done, done, at)
        weighted.observe(done, sum(sizes[:done]), at)
        at += 10.0
    truth = 400.0
    assert plain.eta(10).seconds == pytest.approx(100.0)  # type: ignore[union-attr]
    assert weighted.eta(40).seconds == pytest.approx(truth)  # type: ignore[union-attr]


def test_the_error_covers_the_truth_about_two_times_in_three() -> None:
    inside = total = 0
    for seed in range(40):
        chance = random.Random(seed)
        durations = [chance.uniform(15, 31) for _ in range(64)]
        meter, at = PaceMeter(), 0.0
        for done in range(64):
            meter.observe(done, done, at)
            eta = meter.eta(64 - done)
            if eta and eta.error_seconds and done > 8:
                inside += abs(eta.seconds - sum(durations[done:])) <= eta.error_seconds
                total += 1
            at += durations[done]
    assert 0.55 < inside / total < 0.85


def test_state_carries_on_in_another_process() -> None:
    meter = PaceMeter()
    for done in range(5):
        meter.observe(done, done, 7.0 * done)
    other = PaceMeter(**asdict(meter))
    for one in (meter, other):
        one.observe(6, 6, 50.0)
    assert other == meter
