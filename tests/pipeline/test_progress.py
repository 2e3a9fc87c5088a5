import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from eagle3.pipeline import dialects
from eagle3.pipeline.log_lines import split_log
from eagle3.pipeline.progress import Progress
from eagle3.pipeline.steps import STALL_SECONDS

CORPUS = Path(__file__).resolve().parents[1] / "log_corpus"


def feed(progress: Progress, text: str, now: float) -> None:
    for segment in split_log(text.encode()):
        for event in dialects.read(segment):
            progress.consume(event, now)


def step_event(kind: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "up": at, "kind": kind, **fields}


def count(progress: Progress, done: float, total: float | None, unit: str, at: float) -> None:
    progress.consume(step_event("progress", at, done=done, total=total, unit=unit), at)


def expecting(shard_bytes: list[int], **last_times: dict[str, Any]) -> Progress:
    """`last_times`: PhaseTime by phase."""
    progress = Progress.begin(0.0)
    progress.consume(step_event("expected", 0.0, shard_bytes=shard_bytes, last_times=last_times), 0.0)
    return progress


def bar(done: int, elapsed: float, total: int = 64) -> str:
    clock = f"{int(elapsed) // 60:02d}:{int(elapsed) % 60:02d}"
    head = f"\rLoading safetensors checkpoint shards: {100 * done // total:3d}% Completed | {done}/{total} "
    return head + (f"[{clock}<10:00, 23.20s/it]\n" if done else "[00:00<?, ?it/s]\n")


def load_of_64_shards(progress: Progress) -> list[str]:
    """Loads 64 shards, polled every 5 s; the lines that were reported."""
    chance = random.Random(0)
    ends = [0.0]
    for _ in range(64):
        ends.append(ends[-1] + chance.uniform(18, 28))
    lines, seen, now = [], -1, 0.0
    while seen < 64:
        done = sum(end <= now for end in ends) - 1
        if done > seen:
            seen = done
            feed(progress, bar(done, ends[done]), now)
        if line := progress.report(now):
            lines.append(line)
        now += 5.0
    return lines


def test_a_long_load_is_reported_at_its_milestones() -> None:
    lines = load_of_64_shards(Progress.begin(0.0))
    assert lines[0] == "loading weights 0/64 shards (0 %)"
    assert lines[-1].startswith("loading weights 64/64 shards (100 %), ")
    assert "left" not in lines[-1]
    assert 9 <= len(lines) <= 12
    for line in lines[2:-1]:
        assert re.fullmatch(
            r"loading weights \d+/64 shards \(\d+ %\), 2\d\.\d s/shard \(\d+-\d+\), .* left( ±[\d.]+)?", line
        )


def test_known_shard_sizes_weigh_the_estimate_and_show_gigabytes() -> None:
    lines = load_of_64_shards(expecting([8_547_000_000] * 64))
    assert any(", 111 of 547 GB, " in line for line in lines)


@pytest.mark.parametrize("shard_bytes", [[], [8_547_000_000] * 64])
def test_the_last_load_on_the_host_is_what_a_load_is_compared_with(shard_bytes: list[int]) -> None:
    progress = expecting(shard_bytes, loading_weights={"seconds": 64 * 23.0, "done": 64, "unit": "shards"})
    feed(progress, bar(0, 0), 0.0)
    assert progress.line(0.0).startswith("loading weights 0/64 shards (0 %), ")
    assert progress.line(0.0).endswith(" 24.5 min left")
    for done in range(1, 65):
        feed(progress, bar(done, 24 * done), 24.0 * done)
        assert done < 32 or progress.line(24.0 * done).endswith(" 4 % slower than last time")
    assert progress.snapshot(24.0 * 64)["against_last_time"] == pytest.approx(24 / 23, abs=1e-3)


def test_a_load_from_memory_after_one_from_disk_soon_believes_itself() -> None:
    progress = expecting([], loading_weights={"seconds": 64 * 23.0, "done": 64, "unit": "shards"})
    for done in range(33):
        feed(progress, bar(done, 2 * done), 2.0 * done)
        assert done < 6 or progress.eta(2.0 * done).seconds < 2.2 * (64 - done)  # type: ignore[union-attr]
    assert "0.1 times as long as last time" in progress.line(64.0)


def test_extraction_is_compared_by_tokens_and_only_with_tokens() -> None:
    last = {"seconds": 3000.0, "done": 21_000_000, "unit": "tokens"}
    for unit, expected in (("tokens", "as fast as last time"), ("rows", "left ±")):
        progress = expecting([], generating=last)
        progress.consume(step_event("phase", 0.0, name="generating"), 0.0)
        for poll in range(20):
            count(progress, 70_000 * poll, 1_400_000, unit, 10.0 * poll)
        assert expected in progress.line(190.0)


def test_sizes_of_other_files_are_not_used() -> None:
    progress = expecting([10**9] * 64)
    feed(progress, bar(1, 20, total=8), 0.0)
    assert progress.work_bytes is None


def test_a_line_in_the_middle() -> None:
    progress = Progress.begin(0.0)
    for done in range(43):
        feed(progress, bar(done, 23 * done), 23.0 * done)
    assert progress.line(23.0 * 42) == "loading weights 42/64 shards (65 %), 23.0 s/shard (23-23), 8.4 min left ±0.1"


def test_the_eta_counts_down_between_shards_but_by_one_shard_at_most() -> None:
    progress = Progress.begin(0.0)
    for done in range(11):
        feed(progress, bar(done, 20 * done), 20.0 * done)
    etas = [progress.eta(200.0 + wait) for wait in (0, 15, 300)]
    assert [round(eta.seconds) for eta in etas if eta] == [1080, 1065, 1060]


def test_until_there_is_a_pace_the_bars_own_estimate_is_shown() -> None:
    progress = Progress.begin(0.0)
    feed(progress, "Loading safetensors checkpoint shards:  66% Completed | 42/64 [16:21<08:30, 23.21s/it]", 0.0)
    snapshot = progress.snapshot(0.0)
    assert (snapshot["eta_seconds"], snapshot["eta_error_seconds"], snapshot["pace"]) == (510, None, None)
    assert snapshot["line"] == "loading weights 42/64 shards (65 %), 8.5 min left"


def test_a_fast_job_shows_its_rate() -> None:
    progress = Progress.begin(0.0)
    progress.consume(step_event("phase", 0.0, name="generating"), 0.0)
    for poll in range(20):
        count(progress, 70_000 * poll, 21_000_000, "tokens", 10.0 * poll)
    assert (
        progress.line(190.0)
        == "generating 1,330,000/21,000,000 tokens (6 %), 7,000 tokens/s (7,000-7,000), 46.8 min left ±0.1"
    )


def test_bytes_and_unknown_totals() -> None:
    progress = Progress.begin(0.0)
    feed(
        progress,
        "Loading safetensors using InstantTensor loader:  17% Completed | 68.0G/408G [01:02<05:10, 1.18GB/s]",
        0.0,
    )
    assert progress.line(0.0) == "loading weights 73.0/438.1 GB (16 %), 5.2 min left"
    count(progress, 12, None, "rows", 1.0)
    assert progress.line(1.0) == "loading weights 12 rows"
    assert progress.snapshot(1.0)["eta_seconds"] is None


def test_a_phase_without_counts_tells_how_long_it_takes() -> None:
    progress = Progress.begin(0.0)
    feed(progress, "INFO 10-22 09:33:48 [default_loader.py:267] Loading weights took 19.62 seconds", 10.0)
    assert progress.report(10.0) == "post load"
    assert progress.report(500.0) is None
    assert progress.report(700.0) == "post load, for 11.5 min"


def test_the_step_counting_for_itself_outranks_the_engines_text() -> None:
    progress = Progress.begin(0.0)
    progress.consume(step_event("phase", 0.0, name="engine_init"), 0.0)
    feed(progress, bar(3, 60), 60.0)
    assert (progress.phase, progress.done) == ("loading_weights", 3)
    progress.consume(step_event("phase", 100.0, name="generating"), 100.0)
    count(progress, 500, 1000, "tokens", 100.0)
    feed(
        progress,
        "\rProcessed prompts: 100%|███| 8/8 [00:01<00:00, 8.00it/s]\r\n[shutdown] EngineCore: start mode",
        101.0,
    )
    feed(progress, "\rWriting model shards: 100%|██████████| 1/1 [00:03<00:00,  3.51s/it]\n", 102.0)
    assert (progress.phase, progress.done, progress.unit) == ("generating", 500, "tokens")
    progress.consume(step_event("finished", 110.0, result={}, error=None), 110.0)
    feed(progress, "[shutdown] EngineCore: exiting busy loop", 111.0)  # the rest of the log, read afterwards
    assert progress.phase == "finished"
    progress.consume(step_event("started", 200.0, step="extract_hidden_states"), 200.0)
    feed(progress, bar(0, 0), 201.0)
    assert progress.phase == "loading_weights"


def test_an_error_ends_in_failed() -> None:
    progress = Progress.begin(0.0)
    progress.consume(step_event("finished", 1.0, result=None, error={"type": "X", "message": "y"}), 1.0)
    assert progress.phase == "failed"


def test_initialisation_lines_do_not_take_a_load_back() -> None:
    progress = Progress.begin(0.0)
    feed(progress, bar(3, 60) + "node09:25:25 [1] NCCL INFO Connected all rings\n", 60.0)
    assert progress.phase == "loading_weights"


def test_training_keeps_its_pace_over_a_validation() -> None:
    progress = Progress.begin(0.0)
    for epoch in range(2):
        start = 100.0 * epoch
        progress.consume(step_event("phase", start, name="training"), start)
        for step in range(0, 10):
            count(progress, 10 * epoch + step, 100, "steps", start + 5 * step)
        progress.consume(step_event("phase", start + 50, name="validating"), start + 50)
        assert "steps" not in progress.line(start + 50)
        assert progress.snapshot(start + 50)["pace"] is None
    progress.consume(step_event("phase", 200.0, name="training"), 200.0)
    count(progress, 20, 100, "steps", 200.0)
    pace = progress.snapshot(200.0)["pace"]
    assert pace["item_seconds"] > 7.0  # 5 s a step, and validations of about 50 s between
    assert pace["fastest"] == 5.0


def test_news_are_due_with_the_next_slow_item_or_at_the_end_of_the_phase() -> None:
    progress = Progress.begin(0.0)
    assert progress.news_due_seconds(0.0) is None
    for done in range(11):
        feed(progress, bar(done, 20 * done), 20.0 * done)
    assert [progress.news_due_seconds(200.0 + wait) for wait in (0, 15, 30)] == [20, 5, -10]
    fast = Progress.begin(0.0)
    for poll in range(20):
        count(fast, 1000 * poll, 30_000, "tokens", 2.0 * poll)
    assert fast.news_due_seconds(38.0) == pytest.approx(22.0)


# --- stalls ---


def stalled_after(progress: Progress, last_change: float) -> float:
    """Seconds of silence (in whole minutes) after which the job counts as stalled."""
    return next(60.0 * m for m in range(1, 600) if progress.stall(last_change + 60.0 * m, STALL_SECONDS))


@pytest.mark.parametrize(
    ("name", "phase", "minutes"),
    [
        ("120-hang-waiting-core-engine", "engine_init", 11),
        ("121-hang-after-model-loading", "post_load", 31),
        ("122-hang-in-weight-loading", "loading_weights", 6),
    ],
)
def test_the_hangs_of_the_corpus_are_found(name: str, phase: str, minutes: int) -> None:
    log = json.loads((CORPUS / f"{name}.json").read_text())["log"]
    progress = Progress.begin(0.0)
    feed(progress, log, 0.0)
    for repeat in range(1, 5):  # the log goes on growing, with the same words
        feed(progress, log.splitlines(keepends=True)[-1], 60.0 * repeat)
    assert stalled_after(progress, 0.0) == 60.0 * minutes
    stall = progress.stall(60.0 * minutes, STALL_SECONDS)
    assert stall is not None
    assert (stall.phase, stall.age_seconds) == (phase, 60.0 * minutes)


def test_a_slow_job_gets_ten_times_its_own_pace() -> None:
    progress = Progress.begin(0.0)
    for done in range(6):
        feed(progress, bar(done, 120 * done), 120.0 * done)
    assert progress.stall(600.0 + 1199.0, STALL_SECONDS) is None
    assert progress.stall(600.0 + 1201.0, STALL_SECONDS) is not None


def test_a_serving_server_is_never_stalled() -> None:
    progress = Progress.begin(0.0)
    feed(progress, "INFO:     Application startup complete.", 0.0)
    assert progress.stall(1e9, STALL_SECONDS) is None


def test_a_wall_clock_that_jumps_moves_no_pace_and_no_stall() -> None:
    """Row 16 of the faults: events carry the host's wall clock too. Seen to fail when `t` is read in place of `up`."""
    right, jumped = Progress.begin(0.0), Progress.begin(0.0)
    for done in range(20):
        at = 10.0 * done
        for progress, wall_clock in ((right, 1e9 + at), (jumped, 1e9 + at + 3600 * (done % 3))):
            event = {**step_event("progress", at, done=done, total=100, unit="rows"), "t": wall_clock}
            progress.consume(event, at)
    assert jumped == right
    assert jumped.pace is not None
    assert jumped.pace.item_seconds == pytest.approx(10.0)


# --- state ---


def test_state_goes_through_json_at_any_moment() -> None:
    plain, carried = Progress.begin(0.0), Progress.begin(0.0)
    for done in range(40):
        now = 23.0 * done
        for progress in (plain, carried):
            feed(progress, bar(done, now), now)
        assert carried.report(now) == plain.report(now)
        state = json.dumps(carried.as_state())
        assert len(state) < 3000
        carried = Progress.from_state(json.loads(state))
    assert carried == plain
    assert json.loads(json.dumps(carried.snapshot(1e3))) == plain.snapshot(1e3)
