"""The one place where extraction meets vLLM: an offline engine that prefills rows and leaves their states in files.

Runs on the GPU host. Used of vLLM: `LLM(...)`, its `llm_engine` (`renderer.render_cmpl`, `add_request`, `step`,
`engine_core.shutdown`), `SamplingParams`, the method `extract_hidden_states` and its KV connector.
"""

import fcntl
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from eagle3.contract.errors import ConfigError
from eagle3.remote.dataset import Row
from eagle3.remote.hidden_states import BadStates
from eagle3.remote.step import Step, device_type

READY_TIMEOUT_SECONDS = 4 * 3600  # vLLM gives up after 600 s; a 547 GB model needs 25 minutes and more
SHUTDOWN_SECONDS = 120  # vLLM's own 5 s kill an engine core that is still waiting for its workers
WRITER_THREADS = 2  # each spins a core while it waits for a copy; two keep up with the GPU


class ExtractionEngine:
    """A running engine, shut down at the end of the `with` block. Rows go in by `submit` and come out of `finished`."""

    def __init__(self, step: Step, scratch_dir: Path) -> None:
        """Loads the model. Raises ConfigError when the installed vLLM lacks what extraction needs."""
        _prepare_environment(step)
        try:
            from vllm import LLM, SamplingParams

            from eagle3.remote import hidden_states_connector
        except ImportError as error:
            raise ConfigError(f"vLLM cannot extract hidden states here: {error}; install vllm >= 0.31") from error
        if missing := hidden_states_connector.missing_names():
            raise ConfigError(
                f"vLLM {vllm_version()} lacks {', '.join(missing)} of its hidden-states connector; "
                "extraction is proven with vllm 0.32"
            )
        self._running: dict[str, Row] = {}
        self._sampling = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
        self._engine = LLM(**_engine_arguments(step, scratch_dir)).llm_engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._engine.engine_core.shutdown(timeout=SHUTDOWN_SECONDS)

    @property
    def running(self) -> list[Row]:
        """The rows that the engine has not finished."""
        return list(self._running.values())

    def submit(self, row: Row, attempt: int) -> None:
        request_id = f"row{row.index}-{attempt}"
        (prompt,) = self._engine.renderer.render_cmpl([{"prompt_token_ids": row.input_ids}])
        self._engine.add_request(request_id, prompt, self._sampling)
        self._running[request_id] = row

    def finished(self) -> Iterator[tuple[Row, Path]]:
        """Waits for the engine's next step; the rows that it finished, and the files that will hold their states."""
        for output in self._engine.step():
            if output.finished:
                row = self._running.pop(output.request_id)
                yield row, Path(output.kv_transfer_params["hidden_states_path"])


def wait_for_file(path: Path) -> None:
    """Returns when the engine's writer is done with the file; raises BadStates with its reason if the write failed."""
    from eagle3.remote.hidden_states_connector import ERROR_SUFFIX

    lock_path, error_path = Path(f"{path}.lock"), Path(f"{path}{ERROR_SUFFIX}")
    if lock_path.exists():
        with open(lock_path) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
        lock_path.unlink()
    if error_path.exists():
        reason = error_path.read_text()
        error_path.unlink()
        path.unlink(missing_ok=True)
        raise BadStates(f"the engine could not write the states: {reason}")


def vllm_version() -> str:
    from vllm import __version__

    return __version__


def _engine_arguments(step: Step, scratch_dir: Path) -> dict[str, Any]:
    spec = step.spec
    return {
        "model": str(step.model_dir),
        "trust_remote_code": spec.trust_remote_code,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "gpu_memory_utilization": spec.gpu_memory_utilization,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.extraction_batch_size,
        "enable_prefix_caching": False,  # a cached prefix would have no states
        "enforce_eager": True,  # compiling wins 4 % and costs minutes of start
        "seed": spec.seed,
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": spec.engine_layer_ids}},
        },
        "kv_transfer_config": {
            "kv_connector": "HiddenStatesConnector",
            "kv_connector_module_path": "eagle3.remote.hidden_states_connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {
                "shared_storage_path": str(scratch_dir),
                "num_writer_threads": WRITER_THREADS,
            },
        },
    }


def _prepare_environment(step: Step) -> None:
    """Defaults that vLLM reads when it is imported; what the user has set stays."""
    os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(READY_TIMEOUT_SECONDS))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"  # the writers need an engine that steps on by itself
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a fork after a look at CUDA is broken
    if device_type() == "cuda":
        if importlib.util.find_spec("flashinfer") is None:
            os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        return
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    ranks = step.spec.tensor_parallel_size
    if ranks > 1:
        cores = sorted(os.sched_getaffinity(0))
        share = len(cores) // ranks
        if not share:
            raise ConfigError(f"tensor_parallel_size {ranks} needs {ranks} CPU cores, this process has {len(cores)}")
        groups = (cores[rank * share : (rank + 1) * share] for rank in range(ranks))
        bind = "|".join(",".join(str(core) for core in group) for group in groups)
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", bind)
