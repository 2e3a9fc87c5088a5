"""What a look at a job that stands still (remote/standstill.py) says to a person. Control side, pure."""

from typing import Any

from eagle3.pipeline.gpu_health import gpu_line

READING_BYTES_PER_SECOND = 1e6
BUSY_CORES = 0.5
BUSY_PERCENT = 90
IDLE_PERCENT = 5


def describe(look: dict[str, Any]) -> list[str]:
    """The likely reason first, then what was seen."""
    processes = look["processes"]
    read = sum(process["read_bytes_per_second"] for process in processes) / 1e6
    cores = sum(process["cores"] for process in processes)
    seen = [f"disk reads {read:.1f} MB/s", f"CPU {cores:.1f} cores"]
    if line := gpu_line(look):
        seen.insert(0, line)
    elif look.get("error"):
        seen.insert(0, f"nvidia-smi fails: {look['error']}")
    lines = [f"looked on the host: {_reason(look)} ({'; '.join(seen)})"]
    for process in processes[:1]:
        where = f", in {process['waits_in']}" if process["waits_in"] else ""
        what = f"{process['name']} (pid {process['pid']}, {process['state']}{where})"
        lines.append(f"busiest of {len(processes)}: {what}")
    if look["stack"]:
        lines.append(f"Python stands in: {look['stack']}")
    return lines


def _reason(look: dict[str, Any]) -> str:
    processes = look["processes"]
    if not processes:
        return "no process of the job is left"
    if look.get("error"):
        return "the GPUs do not answer: the driver or a GPU is lost, see `dmesg -T`"
    if any(process["state"] == "D" for process in processes):
        return "a process waits for the disk or the driver and cannot be interrupted"
    if sum(process["read_bytes_per_second"] for process in processes) > READING_BYTES_PER_SECOND:
        return "it still reads from disk: slow, not dead"
    busy = [gpu["utilization"] for gpu in look.get("gpus", []) if gpu["utilization"] is not None]
    if busy and max(busy) >= BUSY_PERCENT:
        return "GPUs are busy, yet nothing gets done: a collective most likely waits for a rank that will not come"
    if sum(process["cores"] for process in processes) > BUSY_CORES:
        return "it computes on the CPU: compiling, tokenizing or spinning in a wait"
    if busy and max(busy) <= IDLE_PERCENT:
        return "GPUs, disk and CPU are idle: it waits for a lock, a message or the network"
    return "disk and CPU are idle: it waits for a lock, a message or the network"
