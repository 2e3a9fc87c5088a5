"""vLLM's hidden-states connector, made to run on CPU too and to leave the reason of a failed write beside the file.

Runs on the GPU host, inside vLLM's worker processes, which load it by `kv_connector_module_path`.
"""

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as stock

ERROR_SUFFIX = ".error"
REQUIRED_NAMES = (
    "_submit_async_write",
    "_write_tensors",
    "_on_write_done",
    "get_finished_count",  # from 0.31; without it a request never ends at TP > 1
    "request_finished_all_groups",
)


def missing_names() -> list[str]:
    """What this subclass builds on and the installed vLLM lacks (the names differ between releases)."""
    missing = [name for name in REQUIRED_NAMES if not hasattr(stock.ExampleHiddenStatesConnector, name)]
    return missing if hasattr(stock, "extract_from_kv_cache") else [*missing, "extract_from_kv_cache"]


class _CopiedAlready:
    """Stands where CUDA has an event: a copy between CPU tensors is over when it returns."""

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class HiddenStatesConnector(stock.ExampleHiddenStatesConnector):
    """Writes each finished request's `hidden_states` [tokens, taps, hidden_size] and `token_ids` to its own file.

    The lock file beside it is held until the file is complete, or until `<file>.error` says why there is none.
    """

    def _submit_async_write(self, pending: stock.PendingSave) -> None:
        if self._kv_cache is None or self._kv_cache.is_cuda:
            super()._submit_async_write(pending)
        elif self._is_tp_rank_zero:
            self._submit_cpu_write(pending)

    def _submit_cpu_write(self, pending: stock.PendingSave) -> None:
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        tensors = {
            # contiguous: indexing the cache may give a strided view of the copy, which safetensors refuses
            "hidden_states": stock.extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids)).contiguous(),
            "token_ids": pending.token_ids.clone(),
        }
        copied = _CopiedAlready()
        future = self._executor.submit(
            self._write_tensors, tensors, copied, pending.filename, self._lock_fds.pop(pending.req_id)
        )
        self._req_copy_events[pending.req_id] = copied
        self._req_futures[pending.req_id] = future
        future.add_done_callback(lambda done: self._on_write_done(pending.req_id, done))

    @staticmethod
    def _write_tensors(tensors: dict[str, torch.Tensor], event: Any, filename: str, lock_fd: int | None) -> None:
        try:
            event.synchronize()
            save_file(tensors, filename)
        except Exception as error:
            Path(filename + ERROR_SUFFIX).write_text(f"{type(error).__name__}: {error}")
            raise
        finally:
            if lock_fd is not None:
                os.close(lock_fd)
