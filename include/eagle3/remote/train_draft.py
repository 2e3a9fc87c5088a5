"""Step train_draft: trains the EAGLE-3 draft head with speculators' trainer. Runs on the GPU host.

By hand: `python -m eagle3.remote train_draft --run-dir DIR`, after build_vocab_mapping and extract_hidden_states.
Killed at any point, it goes on after the last epoch that was saved and validated.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.contract.run_dir import write_json
from eagle3.remote.checkpoints import Checkpoints
from eagle3.remote.dataset import Row, read_rows
from eagle3.remote.hidden_states import StateStore, read_manifest
from eagle3.remote.step import Step, device_type
from eagle3.remote.trainer_process import TrainerProcess, sole_trainer
from eagle3.remote.training_dataset import TRAIN_ROWS_RATIO, rows_hash, split_rows, write_dataset


def run(step: Step) -> dict[str, Any]:
    """Raises ConfigError when rows, states and vocabulary do not belong together, RuntimeError when training fails."""
    step.events.phase("starting")
    rows = read_rows(step)
    coverage = _check_vocabulary(step, rows)
    checksums = _checked_states(step, rows)
    too_long = sum(len(row.input_ids) > step.spec.train_seq_len for row in rows)
    if too_long:
        step.events.warning(
            f"{too_long} of {len(rows)} rows are longer than train_seq_len ({step.spec.train_seq_len}): cut to it"
        )

    arguments = _trainer_arguments(step)
    identity = hashlib.sha256(json.dumps([rows_hash(rows), checksums, arguments]).encode()).hexdigest()
    checkpoints = Checkpoints(step.run_dir.checkpoints_dir, identity)
    with sole_trainer(step.run_dir.checkpoints_dir) as lock:
        if warning := checkpoints.restore():
            step.events.warning(warning)
        if len(checkpoints.epochs) < step.spec.epochs:
            step.run_dir.best_checkpoint_path.unlink(missing_ok=True)
            write_dataset(rows, step.run_dir.dataset_dir)
            _train(step, rows, arguments, checkpoints, coverage, lock)
    return _finish(step, rows, checkpoints)


def _check_vocabulary(step: Step, rows: list[Row]) -> float:
    """Held-out coverage of the draft vocabulary, which must have been made from these very rows."""
    vocabulary = step.result_of("build_vocab_mapping")
    of_this_run = (rows_hash(rows), step.spec.draft_vocab_size)
    if (vocabulary["data_hash"], vocabulary["draft_vocab_size"]) != of_this_run:
        raise ConfigError(
            f"the mapping in {step.run_dir.vocab_dir} was made from other traces or for another draft_vocab_size: "
            "run build_vocab_mapping again"
        )
    return float(vocabulary["held_out_coverage"])


def _checked_states(step: Step, rows: list[Row]) -> list[str]:
    """The checksums of the rows' state files, all of which must be whole: the trainer would find out an hour later."""
    manifest, store = read_manifest(step.run_dir), StateStore(step)
    missing = [row.index for row in rows if not store.is_whole(row, manifest.get(row.index))]
    if missing:
        raise ConfigError(
            f"{len(missing)} of {len(rows)} rows have no states of this target in {step.run_dir.hidden_states_dir} "
            f"(first: row {missing[0]}): run extract_hidden_states again"
        )
    return [manifest[row.index].checksum for row in rows]


def _trainer_arguments(step: Step) -> list[str]:
    spec, run_dir = step.spec, step.run_dir
    arguments: dict[str, Any] = {
        "--speculator-type": "eagle3",
        "--verifier-name-or-path": step.model_dir,
        "--data-path": run_dir.dataset_dir,
        "--hidden-states-path": run_dir.hidden_states_dir,
        "--on-missing": "raise",
        "--save-path": run_dir.checkpoints_dir,
        "--d2t-path": run_dir.vocab_dir / "d2t.npy",
        "--t2d-path": run_dir.vocab_dir / "t2d.npy",
        "--draft-vocab-size": spec.draft_vocab_size,
        "--full-attention-indices": 0,  # the default is a sliding window of 2048, which costs acceptance
        "--train-data-ratio": TRAIN_ROWS_RATIO,
        "--total-seq-len": spec.train_seq_len,
        "--epochs": spec.epochs,
        "--lr": spec.learning_rate,
        "--ttt-steps": spec.ttt_steps,
        "--seed": spec.seed,
        "--loss-implementation": "eager",  # the fused one fails in torch 2.11's Dynamo
    }
    if device_type() == "cpu":
        arguments |= {"--draft-attn-impl": "sdpa", "--num-workers": 0}
    words = [str(word) for pair in arguments.items() for word in pair]
    words += ["--target-layer-ids", *map(str, spec.engine_layer_ids[:-1])]
    return [*words, "--trust-remote-code"] if spec.trust_remote_code else words


def _num_processes(step: Step) -> int:
    return step.spec.tensor_parallel_size if device_type() == "cuda" else 1


def _command(step: Step, arguments: list[str]) -> list[str]:
    if device_type() == "cpu":
        return [sys.executable, "-m", "eagle3.remote.cpu_trainer", *arguments]
    if _num_processes(step) == 1:
        return [sys.executable, "-m", "speculators.train", *arguments]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={_num_processes(step)}"]
    return [sys.executable, *launcher, "-m", "speculators.train", *arguments]


def _total_steps(step: Step, rows: list[Row]) -> int:
    """Optimizer steps over all epochs: each epoch packs the rows anew, so its number of steps may differ."""
    from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

    lengths = [len(row.input_ids) for row in split_rows(rows)[0]]
    sampler = MultipackDistributedBatchSamplerV2(
        step.spec.train_seq_len, lengths, num_replicas=_num_processes(step), rank=0, seed=step.spec.seed
    )
    total = 0
    for epoch in range(step.spec.epochs):
        sampler.set_epoch(epoch)
        total += len(sampler)
    return total


def _train(
    step: Step, rows: list[Row], arguments: list[str], checkpoints: Checkpoints, coverage: float, lock: int
) -> None:
    def epoch_done(record: dict[str, Any]) -> None:
        record["simulated_acceptance_length"] = acceptance_length(record["full_acc"], coverage)
        checkpoints.add(record)
        for name in ("train_loss", "val_loss", "simulated_acceptance_length"):
            step.events.metric(name, record[name])
        for position, accuracy in enumerate(record["full_acc"]):
            step.events.metric(f"full_acc_{position}", accuracy)

    TrainerProcess(step.events, _total_steps(step, rows), epoch_done).run(_command(step, arguments), lock)
    if len(checkpoints.epochs) < step.spec.epochs:  # SIGTERM: it saves what it has and exits 0
        raise RuntimeError(f"the trainer stopped after {len(checkpoints.epochs)} of {step.spec.epochs} epochs")


def acceptance_length(full_acc: list[float], coverage: float) -> float:
    """Tokens per target step to expect: `1 + sum_k full_acc[k] * coverage**(k+1)`.

    `full_acc[k]` is the share of positions where draft tokens 0..k are all right. speculators takes its labels from
    the draft vocabulary alone; the powers of `coverage` count every token outside of it as the miss that it is.
    """
    return round(1 + sum(accuracy * coverage ** (k + 1) for k, accuracy in enumerate(full_acc)), 4)


def _finish(step: Step, rows: list[Row], checkpoints: Checkpoints) -> dict[str, Any]:
    best = checkpoints.best
    checkpoint: Path = checkpoints.path(best["epoch"])
    write_json(
        step.run_dir.best_checkpoint_path,
        {
            "checkpoint": str(checkpoint),
            "epoch": best["epoch"],
            "simulated_acceptance_length": best["simulated_acceptance_length"],
        },
    )
    step.events.artifact(checkpoint)
    epochs = [{name: value for name, value in epoch.items() if name != "files"} for epoch in checkpoints.epochs]
    trained_rows = split_rows(rows)[0]
    tokens = len(epochs) * sum(min(len(row.input_ids), step.spec.train_seq_len) for row in trained_rows)
    seconds = round(sum(epoch["seconds"] for epoch in epochs), 2)
    return {
        "epochs": epochs,
        "best_epoch": best["epoch"],
        "checkpoint": str(checkpoint),
        "train_rows": len(trained_rows),
        "validation_rows": len(rows) - len(trained_rows),
        "steps": sum(epoch["steps"] for epoch in epochs),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": round(tokens / seconds, 1),
    }
