from typing import Any

import pytest

from eagle3.pipeline.gpu_health import gpu_line, gpu_troubles
from eagle3.pipeline.standstill import describe


def gpu(index: int, **values: Any) -> dict[str, Any]:
    usual = {"memory_used_mib": 70000, "memory_total_mib": 81559, "utilization": 98, "temperature": 64}
    return {"index": index, **usual, "uncorrected_ecc": 0, **values}


def test_the_gpus_in_a_line() -> None:
    sample = {"gpus": [gpu(0), gpu(1, utilization=95, temperature=61)]}
    assert gpu_line(sample) == "2 GPUs: 96 % busy (95-98), 68 of 80 GiB, 61-64 C"
    assert gpu_line({"gpus": [gpu(0, utilization=None, temperature=None)]}) == "1 GPU: 68 of 80 GiB"
    assert gpu_line(None) is None
    assert gpu_line({"error": "lost"}) is None


def test_stable_gpus_have_no_trouble_and_old_memory_errors_are_none() -> None:
    old = {"gpus": [gpu(0, uncorrected_ecc=3), gpu(1, uncorrected_ecc=None)], "xids": []}
    assert gpu_troubles(old, old) == gpu_troubles(None, None) == []


@pytest.mark.parametrize(
    ("sample", "trouble"),
    [
        ({"gpus": [gpu(0, uncorrected_ecc=4)]}, "GPU 0 has new uncorrected memory errors"),
        ({"gpus": [gpu(0), gpu(5, temperature=93)]}, "GPU 5 is hot"),
        ({"gpus": [], "xids": ["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."]}, "Xid (PCI:0000:3b:00)"),
        ({"error": "Unable to determine the device handle"}, "nvidia-smi fails: Unable to determine"),
    ],
)
def test_troubles(sample: dict[str, Any], trouble: str) -> None:
    (found,) = gpu_troubles(sample, {"gpus": [gpu(0, uncorrected_ecc=3)]})
    assert trouble in found


def process(**values: Any) -> dict[str, Any]:
    return {"pid": 7, "name": "VLLM::Worker_TP0", "state": "S", "waits_in": None, "cores": 0.0} | {
        "read_bytes_per_second": 0,
        **values,
    }


@pytest.mark.parametrize(
    ("processes", "gpus", "reason"),
    [
        ([process(cores=1.0)], [gpu(0, utilization=100), gpu(1, utilization=0)], "a collective most likely waits"),
        ([process()], [gpu(0, utilization=0)], "GPUs, disk and CPU are idle"),
        ([process()], [], "disk and CPU are idle"),
        ([process(read_bytes_per_second=250e6)], [gpu(0, utilization=0)], "slow, not dead"),
        ([process(cores=3.2)], [gpu(0, utilization=0)], "computes on the CPU"),
        ([process(), process(state="D")], [gpu(0, utilization=0)], "cannot be interrupted"),
        ([], [], "no process of the job is left"),
    ],
)
def test_the_likely_reason_of_a_standstill(processes: Any, gpus: Any, reason: str) -> None:
    lines = describe({"processes": processes, "stack": None, **({"gpus": gpus} if gpus else {})})
    assert reason in lines[0]
    assert "disk reads" in lines[0]
    assert len(lines) == 1 + bool(processes)


def test_the_stack_is_shown_and_a_lost_driver_is_the_reason() -> None:
    lines = describe({"processes": [process(waits_in="futex_wait")], "stack": "wait < recv", "error": "no device"})
    assert lines[0].startswith("looked on the host: the GPUs do not answer")
    assert lines[1:] == [
        "busiest of 1: VLLM::Worker_TP0 (pid 7, S, in futex_wait)",
        "Python stands in: wait < recv",
    ]
