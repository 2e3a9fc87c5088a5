"""The table of failure reasons: what the log says → its name → what to do. Control side, data only.

Within one line the upper row wins; over the log, the first line of the lowest rank. Patterns are searched in the text
of a record, without its header.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Reason(StrEnum):
    CUDA_OOM = "cuda_oom"
    GPU_MEMORY_IN_USE = "gpu_memory_in_use"
    KV_CACHE_OOM = "kv_cache_oom"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_ERROR = "nccl_error"
    WORKER_DIED = "worker_died"
    OOM_KILLER = "oom_killer"
    ENGINE_INIT_FAILED = "engine_init_failed"
    ENGINE_TIMEOUT = "engine_timeout"
    STARTUP_TIMEOUT = "startup_timeout"
    NO_KERNEL_IMAGE = "no_kernel_image"
    ILLEGAL_MEMORY_ACCESS = "illegal_memory_access"
    GPU_HARDWARE_OR_DRIVER = "gpu_hardware_or_driver"
    XID = "xid"
    SIGBUS_SHM = "sigbus_shm"
    CORRUPT_SAFETENSORS = "corrupt_safetensors"
    WEIGHT_SHAPE_MISMATCH = "weight_shape_mismatch"
    WEIGHT_NAME_MISMATCH = "weight_name_mismatch"
    API_MISMATCH = "api_mismatch"
    CONFIG_ERROR = "config_error"
    NAN_HIDDEN_STATES = "nan_hidden_states"
    RESOURCE_LIMIT = "resource_limit"
    DISK_FULL = "disk_full"
    PORT_IN_USE = "port_in_use"
    SERVER_UNREACHABLE = "server_unreachable"
    HF_AUTH = "hf_auth"
    HF_NOT_FOUND = "hf_not_found"
    CANCELLED = "cancelled"


class Rank(IntEnum):
    """How much a line explains: a cause, a consequence, or only the heading of one."""

    SPECIFIC = 0
    GENERIC = 1
    HEADING = 2


@dataclass(frozen=True)
class Rule:
    reason: Reason
    pattern: str
    advice: str
    rank: Rank = Rank.SPECIFIC
    hangs: bool = False  # the process typically stays, and keeps its GPUs


HANG_ADVICE = (
    "nothing moves: on the host, look whether the GPUs are busy at 0 or 100 % (`nvidia-smi`), whether the disk is read "
    "(`iostat -x 5`, /proc/PID/io), and where the process stands (`py-spy dump --pid PID`)"
)
_ENGINE = "read the first traceback above this line in the job's log"

RULES = (
    Rule(
        Reason.SIGBUS_SHM,
        r"No space left on device.{0,40}/dev/shm|exit ?code: -7\b|[Bb]us error|insufficient shared memory",
        "give the container more shared memory (docker: --shm-size or --ipc=host) and look at `df -h /dev/shm`",
    ),
    Rule(
        Reason.DISK_FULL,
        r"No space left on device|StorageFull|ENOSPC|Disk quota exceeded",
        "free space under the work directory (`df -h`, `df -i`), then run the task again: it resumes",
    ),
    Rule(
        Reason.CUDA_OOM,
        r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "lower gpu_memory_utilization, extraction_batch_size or train_seq_len; `nvidia-smi` shows other processes",
    ),
    Rule(
        Reason.GPU_MEMORY_IN_USE,
        r"Free memory on device.*is less than desired",
        "another process holds the GPUs: `nvidia-smi`; `ps -eo pid,args | grep VLLM::` finds orphans of an earlier run",
    ),
    Rule(
        Reason.KV_CACHE_OOM,
        r"No available memory for the cache blocks|Not enough memory\. Please try to increase --mem-fraction-static",
        "raise gpu_memory_utilization or tensor_parallel_size: the weights leave no room for the KV cache",
    ),
    Rule(
        Reason.KV_CACHE_TOO_SMALL,
        r"max seq len.*larger than the maximum number of tokens|To serve at least one request with the model"
        r"|KV cache is needed, which is larger than",
        "lower max_model_len, or raise gpu_memory_utilization",
    ),
    Rule(
        Reason.NCCL_TIMEOUT,
        r"Watchdog caught collective operation timeout",
        "one rank hung: find the first that stopped, check `nvidia-smi` and `dmesg -T`; NCCL_DEBUG=INFO shows more",
    ),
    Rule(
        Reason.ILLEGAL_MEMORY_ACCESS,
        r"an illegal memory access was encountered|misaligned address",
        "a kernel bug or a bad GPU: try again once; then another attention backend or vLLM release; check `dmesg -T`",
    ),
    Rule(
        Reason.NO_KERNEL_IMAGE,
        r"no kernel image is available",
        "this torch or vLLM build does not support the GPU: install the build for its compute capability",
    ),
    Rule(
        Reason.NCCL_ERROR,
        r"NCCL error[: ]|ncclInternalError|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError",
        "run with NCCL_DEBUG=INFO; check peer access, NCCL_SOCKET_IFNAME and /dev/shm",
    ),
    Rule(
        Reason.XID,
        r"NVRM: Xid \(.*?\): \d+",
        "the driver reported a GPU fault: `dmesg -T | grep Xid`; a reset of the GPU or a reboot is likely needed",
        hangs=True,
    ),
    Rule(
        Reason.GPU_HARDWARE_OR_DRIVER,
        r"CUDA driver version is insufficient|unspecified launch failure|uncorrectable ECC|No CUDA GPUs are available"
        r"|Driver/library version mismatch|CUDA-capable device\(s\) is/are busy|GPU is lost|GPU has fallen off the bus",
        "check `nvidia-smi` and `dmesg -T` on the host; driver and CUDA build must fit",
    ),
    Rule(
        Reason.OOM_KILLER,
        r"exit ?code: -9\b|Failed core proc\(s\): \{[^}]*: -9|[Oo]ut of memory: Killed process|oom-kill|^Killed$",
        "the host ran out of memory: `dmesg -T | grep -i oom`, and the cgroup's memory.events",
    ),
    Rule(
        Reason.CORRUPT_SAFETENSORS,
        r"Error while deserializing|MetadataIncompleteBuffer|InvalidHeaderDeserialization|HeaderToo(?:Large|Small)",
        "a shard is cut or damaged: compare the sizes of the shards with the index, and copy that shard again",
    ),
    Rule(
        Reason.WEIGHT_SHAPE_MISMATCH,
        r"size mismatch for |Attempted to load weight \(torch\.Size",
        "checkpoint and config.json do not belong together, or the vocabulary or TP size does not fit",
    ),
    Rule(
        Reason.WEIGHT_NAME_MISMATCH,
        r"There is no module or parameter named|[Ww]eights were not initialized from checkpoint"
        r"|Missing key\(s\) in state_dict",
        "this vLLM release does not know the checkpoint's layout: check the architecture and the version",
    ),
    Rule(
        Reason.RESOURCE_LIMIT,
        r"can't start new thread|Too many open files|(?:Cannot|can't) allocate memory|Resource temporarily unavailable",
        "raise the limits of the account on the host: `ulimit -u`, `ulimit -n`, the cgroup's pids.max and memory.max",
    ),
    Rule(
        Reason.PORT_IN_USE,
        r"EADDRINUSE|[Aa]ddress already in use|[Pp]ort \d+ is (?:already )?in use",
        "another process listens there: `ss -ltnp`; stop it or set another server_port",
    ),
    Rule(
        Reason.HF_AUTH,
        r"Cannot access gated repo for url|GatedRepoError",
        "give the host access to the gated repository, or use a local folder",
    ),
    Rule(
        Reason.HF_NOT_FOUND,
        r"RepositoryNotFoundError|Repository Not Found for url|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|is not a local folder and is not a valid model identifier|Invalid repository ID or local directory",
        "a path that does not exist is taken for a repository: check model_path on the host",
    ),
    Rule(
        Reason.CONFIG_ERROR,
        r"ValidationError: \d+ validation errors? for|error: unrecognized arguments:|error: argument --"
        r"|Model architectures .* (?:are not supported|failed to be inspected)|does not recognize this architecture"
        r"|User-specified max_model_len|must be divisible by tensor parallel size|trust_remote_code=True",
        "the engine refuses its settings: correct the named one",
    ),
    Rule(
        Reason.NAN_HIDDEN_STATES,
        r"(?i:hidden.?states?\b.*\b(?:contains?|has|have|are) (?:all )?(?:nan|inf)s?\b)|\b(?:NaN|nan) (?:in|at) hidden",
        "check the dtype and the quantisation of the target; look at the first bad row",
    ),
    Rule(
        Reason.ENGINE_TIMEOUT,
        r"RPC call to \w+ timed out",
        "a worker hung: look at the silence before this line, then `nvidia-smi` and `dmesg -T`",
    ),
    Rule(
        Reason.STARTUP_TIMEOUT,
        r"Timed out waiting for engine (?:core processes )?to start|Timed out waiting for engine core processes",
        "raise VLLM_ENGINE_READY_TIMEOUT_S above the time of a load; the engine may still run and hold the GPUs",
        hangs=True,
    ),
    Rule(
        Reason.API_MISMATCH,
        r"^(?:[\w.]+\.)?TypeError: .*(?:missing \d+ required|unexpected keyword argument|takes \d+ positional)"
        r"|^(?:[\w.]+\.)?AttributeError: .* has no attribute|^ImportError: cannot import name"
        r"|^ModuleNotFoundError: No module",
        "installed releases do not fit together: compare `pip list` on the host with the requirements file",
    ),
    Rule(
        Reason.SERVER_UNREACHABLE,
        r"Data generation failed|consecutive samples errored out",
        "the server stopped answering: its own log has the cause",
        Rank.GENERIC,
    ),
    Rule(
        Reason.WORKER_DIED,
        r"died unexpectedly|MulitprocExecutor got fatal signal|Received sigquit from a child process|ChildFailedError"
        r"|DataLoader worker .*(?:is killed|exited unexpectedly)",
        "a process was killed or crashed without a message: exit codes, `dmesg -T`, /dev/shm",
        Rank.GENERIC,
    ),
    Rule(
        Reason.ENGINE_INIT_FAILED,
        r"Engine core initialization failed|WorkerProc initialization failed|Engine process failed to start",
        _ENGINE,
        Rank.GENERIC,
    ),
    Rule(
        Reason.CANCELLED,
        r"WorkerProc was terminated|Received \d+ death signal|got signal: 15\b|^KeyboardInterrupt",
        "someone stopped the job, or the host went down: run it again",
        Rank.GENERIC,
    ),
    Rule(Reason.ENGINE_INIT_FAILED, r"(?:EngineCore|WorkerProc) failed to start", _ENGINE, Rank.HEADING),
    Rule(
        Reason.WORKER_DIED,
        r"EngineCore encountered a fatal error|(?:WorkerProc|EngineCore) hit an exception|EngineDeadError"
        r"|AsyncLLM output_handler failed",
        _ENGINE,
        Rank.HEADING,
    ),
)

# Generic lines that only point at the exception which follows or precedes them.
CAUSE_BELOW = r"failed to start\.|encountered a fatal error\.|hit an exception"
CAUSE_ABOVE = r"ChildFailedError|See root cause above|See stack trace for (?:the )?root cause"

# Lines that look alarming and are not. Each pardons its own line only.
BENIGN = (
    r"Error retrieving safetensors",
    r"NCCL (?:WARN|INFO)",
    r"[Ss]kipping tactic",
    r"Ignoring this choice|during autotuning|No valid triton configs",
    r"Found ulimit of",
    r"Failed to import from vllm",
    r"If you see error log",
)
