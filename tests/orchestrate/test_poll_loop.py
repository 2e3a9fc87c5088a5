"""Watching a job through a connection that fails in every way, with a real SSH server and a real job in bash."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from typing import Any

import asyncssh
import psutil
import pytest

from eagle3.gpu_host.remote_job import parse_poll
from eagle3.orchestrate.hosts import connect_async
from eagle3.orchestrate.operators import POLL_SECONDS
from eagle3.orchestrate.poll_loop import Listener, poll_until_over
from eagle3.orchestrate.watch import JobWatch

both_servers = pytest.mark.parametrize("watched", ["asyncssh", "openssh"], indirect=True)


@both_servers
async def test_one_connection_for_the_whole_job_and_the_end_of_the_log_is_delivered(watched):
    """Row 8. Seen to fail when a job counts as over before `has_more` is False."""
    noise = "for i in $(seq 40000); do echo line $i of the log which is long enough to fill some megabytes; done"
    await watched.launch(
        f"{noise}; echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate'; {noise}; exit 1"
    )
    launched = watched.line.num_connections
    outcome = await watched.watch()
    assert watched.line.num_connections == launched + 1
    assert outcome["verdict"] == "failed"
    assert "CUDA out of memory" in outcome["message"]
    assert outcome["tail"][-1].startswith("line 40000 ")
    assert str(watched.job.job_dir) in outcome["message"]


@both_servers
@pytest.mark.parametrize("fault", ["cut", "dead"])
async def test_a_line_that_is_lost_for_a_while_costs_nothing(watched, fault):
    """Row 5. Seen to fail when the loop returns at Unreachable, and (dead) without the time limit of a question."""
    await watched.launch("echo one; sleep 8; echo two; finish")
    watching = asyncio.create_task(watched.watch())
    await asyncio.sleep(1.5)
    if fault == "cut":
        await watched.line.cut()
    else:
        watched.line.go_dead()
    await asyncio.sleep(4)
    assert any(line.startswith("unreachable for") for line in watched.told)
    if fault == "dead":
        await watched.line.cut()
    await watched.line.up()
    outcome = await asyncio.wait_for(watching, 30)
    assert (outcome["verdict"], outcome["result"]) == ("finished", {"a": 1})


async def test_giving_up_says_so_and_leaves_the_job_alone(watched):
    """Row 5, the stated deadline. Seen to fail without the comparison with `unreachable_seconds`."""
    await watched.launch("sleep 60")
    watching = asyncio.create_task(watched.watch(unreachable_seconds=2))
    await asyncio.sleep(1)
    await watched.line.cut()
    outcome = await asyncio.wait_for(watching, 30)
    assert outcome["verdict"] == "unreachable"
    assert "untouched" in outcome["message"]
    await watched.line.up()
    async with watched.connect() as shell:
        answer = json.loads((await shell.run(watched.job.kill_command(0))).stdout)
    assert (answer["status"], answer["reason"]) == ("exited", "killed")


async def test_a_changed_host_key_fails_at_once(watched):
    """Row 6. Seen to fail when `is_refusal` knows no HostKeyNotVerifiable."""
    await watched.launch("sleep 60")
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key("openssh")
    started = time.monotonic()
    outcome = await watched.watch(connect=lambda: watched.connect(b"127.0.0.1 " + other))
    assert outcome["verdict"] == "refused"
    assert time.monotonic() - started < 5
    async with watched.connect() as shell:
        await shell.run(watched.job.kill_command(0))


PROGRESS = """echo '{"v": 1, "up": %s, "kind": "progress", "done": %s, "total": 40, "unit": "rows"}' """
TEN_A_SECOND = "; sleep 0.5; ".join(PROGRESS % (n, n) + ">> $EAGLE3_JOB_DIR/events.jsonl" for n in range(5, 41, 5))


async def test_another_watcher_goes_on_where_the_first_one_was(watched):
    """Row 9: a triggerer that replaces another tells nothing twice. Seen to fail without the state that was kept."""
    await watched.launch(f"echo 'café ██'; {TEN_A_SECOND}; sleep 1; finish")
    first = asyncio.create_task(watched.watch())
    await asyncio.sleep(2)
    first.cancel()
    told = list(watched.told)
    assert told[0].startswith("starting")
    outcome = await watched.watch(state=watched.kept)
    assert outcome["verdict"] == "finished"
    assert not set(told) & set(watched.told[len(told) :]), watched.told
    assert watched.told[len(told) :], "the rest was told"
    assert watched.shown[-1]["phase"] == "finished"


async def test_why_a_job_failed_is_told_by_a_watcher_that_came_later(watched):
    """Row 9. Seen to fail without reading the whole log again."""
    await watched.launch("echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate'; sleep 3; exit 1")
    first = asyncio.create_task(watched.watch())
    await asyncio.sleep(1.5)
    first.cancel()
    outcome = await watched.watch(state=watched.kept)
    assert "CUDA out of memory" in outcome["message"]
    assert "failed in starting" in outcome["message"]
    assert f"eagle3 job tail {watched.job.job_id} --host conn" in outcome["message"]


async def test_two_watchers_at_once_agree_and_disturb_nothing(watched):
    """Row 9: two triggerers with the same trigger. Watching only reads: seen to fail with a poll that truncates."""
    await watched.launch(f"{TEN_A_SECOND}; finish")
    one, other = await asyncio.gather(watched.watch(), watched.watch())
    assert one == other
    assert one["verdict"] == "finished"
    assert len(watched.starts) == 1


@both_servers
async def test_a_killed_supervisor_is_replaced_and_the_verdict_comes(watched):
    """Row 2. Seen to fail when `poll` starts no supervisor for a running child that has none."""
    await watched.launch("sleep 4; finish")
    watching = asyncio.create_task(watched.watch())
    await asyncio.sleep(1)
    state = json.loads((watched.job.job_dir / "state.json").read_text())
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    outcome = await asyncio.wait_for(watching, 20)
    assert (outcome["verdict"], outcome["result"]) == ("finished", {"a": 1})
    assert json.loads((watched.job.job_dir / "exit.json").read_text())["adopted"] is True
    assert len(watched.starts) == 1


async def test_a_killed_follower_is_started_again(watched):
    """Row 5: the process that answers the polls dies, by the kernel's OOM killer say."""
    await watched.launch("sleep 4; finish")
    watching = asyncio.create_task(watched.watch())
    await asyncio.sleep(1.5)
    subprocess.run(["pkill", "-9", "-f", f"supervisor follow {watched.job.job_dir}"], check=True)
    outcome = await asyncio.wait_for(watching, 20)
    assert outcome["verdict"] == "finished"
    assert any(line.startswith("no answer for 0 s") and "polling on" in line for line in watched.told), watched.told


WATCHERS, WATCHED_SECONDS = 50, 10.0


@both_servers
async def test_fifty_watchers_cost_half_a_core_at_most(watched, monkeypatch):
    """Row 19, with the product's own connections and pace. Seen to fail with a process for each poll (CPU), and without
    the limit on logins at once (OpenSSH's MaxStartups)."""
    extra = {"key_file": str(watched.host.client_key), "host_key": watched.host.host_key_line}
    await watched.launch("sleep 60; finish")
    connection = {"conn_type": "ssh", "host": "127.0.0.1", "port": watched.line.port, "login": watched.host.login}
    conn_id = f"fifty_{watched.line.port}"
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({**connection, "extra": extra}))
    launched = watched.line.num_connections
    told: list[str] = []
    answered = [0] * WATCHERS

    async def watch(number: int) -> None:
        async def show(progress: dict[str, Any]) -> None:
            answered[number] += 1

        async def keep(state: dict[str, Any]) -> None:
            pass

        watch = JobWatch(watched.job, None)
        await poll_until_over(
            watch, lambda: connect_async(conn_id), POLL_SECONDS, 600, Listener(told.append, show, keep)
        )

    watchers = [asyncio.create_task(watch(number)) for number in range(WATCHERS)]
    deadline = time.monotonic() + 45
    while not all(answered):
        assert time.monotonic() < deadline, f"{answered.count(0)} watchers got no answer; {set(told)}"
        await asyncio.sleep(0.2)
    before = cpu_seconds(watched)
    await asyncio.sleep(WATCHED_SECONDS)
    cores = (cpu_seconds(watched) - before) / WATCHED_SECONDS
    for watcher in watchers:
        watcher.cancel()
    async with watched.connect(timeout_seconds=20) as shell:
        await shell.run(watched.job.kill_command(None))
    assert watched.line.num_connections - launched <= WATCHERS + 1
    assert not [line for line in told if "unreachable" in line]
    assert cores < 0.5, f"{cores:.2f} cores for watchers, SSH server and what answers on the host"


def cpu_seconds(watched) -> float:
    """Of this process (the watchers), and of the SSH server with everything below it."""
    server = psutil.Process(watched.host.pid)
    host = 0.0
    for process in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            host += times.user + times.system + times.children_user + times.children_system
    return host + time.process_time()


async def test_a_stalled_job_is_looked_at_on_the_host_and_the_task_log_says_what_it_does(watched) -> None:
    """Row 16's clock: the host's time since boot, here an hour later. Seen to fail when nobody asks for a look."""
    await watched.launch("sleep 300")
    watch = JobWatch(watched.job, None)
    async with watched.connect(timeout_seconds=20) as shell, shell.dialogue(watch.follow_command()) as host:
        now = parse_poll(await host.ask(watch.question()))
        watch.take(now)
        assert not watch.has_more
        assert watch.seconds_to_next_poll(at_most=9) == 3.5  # nothing is known of its pace
        later = replace(now, boottime=now.boottime + 3600)
        quiet, stalled = watch.take(later)
        assert quiet == "starting, for 60.0 min"
        assert stalled.startswith("stalled in starting: no progress for 3600 s of 900")
        assert watch.has_more
        answer = parse_poll(await host.ask(watch.question()))
        lines = watch.take(replace(answer, boottime=later.boottime))
        assert lines[0].startswith("looked on the host: disk and CPU are idle")
        assert "bash" in lines[1] or "sleep" in lines[1]
        assert not watch.has_more
        assert watch.take(replace(now, boottime=later.boottime + 60)) == []
        assert watch.progress()["verdict"] == "stalled"


async def test_a_job_that_warns_all_the_time_does_not_fill_the_task_log(watched) -> None:
    """Seen to fail (200 lines) without the ration of lines."""
    warn = """for i in $(seq 200); do echo '{"v": 1, "up": 1, "kind": "warning", "text": "odd row '$i'"}'; done"""
    await watched.launch(f"{warn} >> $EAGLE3_JOB_DIR/events.jsonl; sleep 3; finish")
    outcome = await watched.watch()
    assert outcome["verdict"] == "finished"
    assert 10 < len([line for line in watched.told if line.startswith("warning: odd row")]) <= 20
    assert watched.told[-1].startswith("finished")
