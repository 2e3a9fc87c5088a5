"""What a sample of the host's GPUs (remote/gpu_samples.py) says: a line, and the troubles. Control side, pure."""

from typing import Any

HOT_CELSIUS = 90

Sample = dict[str, Any]


def gpu_line(sample: Sample | None) -> str | None:
    """`8 GPUs: 98 % busy (95-100), 71 of 80 GiB, 61-68 C`; None where nothing was measured."""
    gpus = (sample or {}).get("gpus")
    if not gpus:
        return None
    parts = []
    if busy := _values(gpus, "utilization"):
        parts.append(f"{sum(busy) / len(busy):.0f} % busy ({_range(busy)})")
    used, total = _values(gpus, "memory_used_mib"), _values(gpus, "memory_total_mib")
    if used and total:
        parts.append(f"{max(used) / 1024:.0f} of {min(total) / 1024:.0f} GiB")
    if celsius := _values(gpus, "temperature"):
        parts.append(f"{_range(celsius)} C")
    return f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}: {', '.join(parts)}"


def gpu_troubles(sample: Sample | None, first: Sample | None) -> list[str]:
    """What is wrong with the hardware, each trouble in the same words as long as it lasts.

    `first`: the first sample that was seen, whose memory errors are old ones.
    """
    sample = sample or {}
    troubles = [f"the driver reports {xid}" for xid in sample.get("xids", [])]
    if sample.get("error"):
        troubles.append(f"nvidia-smi fails: {sample['error']}")
    old = {gpu["index"]: gpu["uncorrected_ecc"] or 0 for gpu in (first or {}).get("gpus", [])}
    for gpu in sample.get("gpus", []):
        if (gpu["uncorrected_ecc"] or 0) > old.get(gpu["index"], 0):
            troubles.append(f"GPU {gpu['index']} has new uncorrected memory errors (ECC)")
        if (gpu["temperature"] or 0) >= HOT_CELSIUS:
            troubles.append(f"GPU {gpu['index']} is hot: {HOT_CELSIUS} C or more")
    return troubles


def _values(gpus: list[Sample], name: str) -> list[float]:
    return [gpu[name] for gpu in gpus if gpu[name] is not None]


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if low == high else f"{low:.0f}-{high:.0f}"
