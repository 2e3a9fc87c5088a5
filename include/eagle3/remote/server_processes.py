"""Who holds a port or the GPUs' memory on the GPU host."""

import os
import socket
from dataclasses import dataclass

import psutil

from eagle3.remote import nvidia_smi


def port_is_open(port: int) -> bool:
    """Something listens on the loopback port."""
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def port_holder(port: int) -> str:
    """Who listens there, for a person. Another user's process cannot always be named."""
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                process = psutil.Process(connection.pid)
                return f"process {process.pid} of {process.username()} ({' '.join(process.cmdline())[:200]})"
            except psutil.Error:
                break
    return "a process of another user, or one in another container"


@dataclass(frozen=True)
class GpuMemory:
    index: str
    used_mib: int
    total_mib: int


def gpu_memory() -> list[GpuMemory]:
    """Memory of the GPUs that this process may use (CUDA_VISIBLE_DEVICES); empty on a host without nvidia-smi."""
    if not nvidia_smi.is_present():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    rows = nvidia_smi.query("gpu", "index,uuid,memory.used,memory.total")
    return [
        GpuMemory(index, int(used), int(total))
        for index, uuid, used, total in rows
        if visible is None or index in visible.split(",") or uuid in visible.split(",")
    ]


def gpu_processes() -> str:
    """Who computes on the GPUs, for a person."""
    rows = nvidia_smi.query("compute-apps", "pid,process_name,used_memory")
    return "; ".join(f"process {pid} ({name}) {used} MiB" for pid, name, used in rows) or "no process is listed"
