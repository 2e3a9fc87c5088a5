"""Ends the vLLM server of the GPU host and proves that nothing of it is left."""

import asyncio
import time
from typing import Any

from eagle3.contract.errors import ConfigError, JobFailed
from eagle3.remote import supervisor
from eagle3.remote.job_folder import read_state
from eagle3.remote.processes import members, own_session
from eagle3.remote.server_processes import gpu_memory, gpu_processes, port_holder, port_is_open
from eagle3.remote.server_watch import POLL_SECONDS, is_alive
from eagle3.remote.step import Step
from eagle3.remote.vllm_client import RequestFailed, VllmClient

DRAIN_SECONDS = 600.0
GRACE_SECONDS = 60.0
RELEASE_SECONDS = 120.0


def stop(step: Step) -> dict[str, Any]:
    """End the server and prove it: no process, a closed port, free GPU memory. Nothing to do is fine too.

    Raises ConfigError when somebody else's process holds the port, JobFailed when something cannot be ended.
    """
    started = time.monotonic()
    server_dir, port = step.run_dir.work_dir.server_dir, step.spec.server_port
    was_running = is_alive(step)
    abandoned = asyncio.run(_drain(step)) if was_running else 0
    step.events.phase("stopping")
    before = members(server_dir.resolve(), own_session(read_state(server_dir)))
    left = supervisor.kill(server_dir, GRACE_SECONDS)["left"]
    if left:
        raise JobFailed("not_ended", f"processes {left} of the server in {server_dir} survive SIGKILL: see dmesg")
    if port_is_open(port):
        raise ConfigError(
            f"port {port} is held by {port_holder(port)}, which this pipeline did not start: "
            "stop it, or set another server_port"
        )
    _wait_for_gpu_memory(step)
    return {
        "was_running": was_running,
        "processes_ended": len(before),
        "requests_abandoned": abandoned,
        "seconds": round(time.monotonic() - started, 1),
    }


async def _drain(step: Step) -> int:
    """Wait for the requests in flight, up to a limit. Returns how many are left."""
    deadline = time.monotonic() + DRAIN_SECONDS
    async with VllmClient(step.spec) as client:
        if not await client.is_healthy():
            return 0
        step.events.phase("draining")
        while is_alive(step):
            try:
                in_flight = (await client.metrics()).requests_in_flight
            except RequestFailed as error:
                step.events.warning(f"not waiting for the server's requests: {error}")
                return 0
            if not in_flight:
                return 0
            if time.monotonic() > deadline:
                step.events.warning(f"stopping with {in_flight} requests unfinished after {DRAIN_SECONDS:.0f} s")
                return in_flight
            await asyncio.sleep(POLL_SECONDS)
    return 0


def _wait_for_gpu_memory(step: Step) -> None:
    """The next engine needs its share of every GPU; the driver takes a moment to release it."""
    deadline = time.monotonic() + RELEASE_SECONDS
    share = step.spec.gpu_memory_utilization
    while held := [gpu for gpu in gpu_memory() if gpu.total_mib - gpu.used_mib < share * gpu.total_mib]:
        if time.monotonic() > deadline:
            amounts = ", ".join(f"GPU {gpu.index}: {gpu.used_mib} of {gpu.total_mib} MiB" for gpu in held)
            raise JobFailed("gpu_memory_held", f"GPU memory is still held ({amounts}) by {gpu_processes()}")
        time.sleep(POLL_SECONDS)
