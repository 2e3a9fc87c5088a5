"""Step `preflight`, on the GPU host: refuse a bad run within seconds, before anything is loaded.

By hand: `python -m eagle3.remote preflight --run-dir DIR`. To add a check, write a function `Step -> Finding` that
raises ConfigError when the run cannot work, and add its row to CHECKS.
"""

from collections.abc import Callable
from typing import Any

from eagle3.contract.errors import ConfigError
from eagle3.remote import host_checks, target_checks
from eagle3.remote.finding import Finding, Verdict
from eagle3.remote.step import Step
from eagle3.remote.weight_files import read_weight_files

CHECKS: dict[str, Callable[[Step], Finding]] = {
    "versions": host_checks.check_versions,
    "torchvision": host_checks.check_torchvision,
    "target config": target_checks.check_config,
    "weights": target_checks.check_weights,
    "tokenizer": target_checks.check_tokenizer,
    "chat template": target_checks.check_chat_template,
    "taps": target_checks.check_taps,
    "draft vocabulary": target_checks.check_draft_vocabulary,
    "sequence length": target_checks.check_sequence_length,
    "tensor parallel": target_checks.check_tensor_parallel,
    "prompts": host_checks.check_prompts,
    "disk": host_checks.check_disk,
    "shared memory": host_checks.check_shared_memory,
    "devices": host_checks.check_devices,
    "server arguments": host_checks.check_server_arguments,
    "port": host_checks.check_port,
}


def run(step: Step) -> dict[str, Any]:
    """Result: `{checks: [{name, verdict, message}], versions, num_shards, weight_bytes, num_layers, hidden_size,
    vocab_size}`. Raises one ConfigError with all failed checks.
    """
    step.events.phase("checking")
    findings: dict[str, Finding] = {}
    for name, check in CHECKS.items():
        step.events.progress(len(findings), len(CHECKS), "checks")
        findings[name] = finding = _finding(check, step)
        print(f"{finding.verdict:8}{name}: {finding.message}", flush=True)
        if finding.verdict is Verdict.WARNING:
            step.events.warning(f"{name}: {finding.message}")
    step.events.progress(len(findings), len(CHECKS), "checks")
    _refuse_if_failed(findings)

    target = target_checks.read_target_config(step.model_dir)
    files = read_weight_files(step.model_dir)
    return {
        "checks": [{"name": name, **finding._asdict()} for name, finding in findings.items()],
        "versions": host_checks.installed_versions(),
        "num_shards": len(files),
        "weight_bytes": sum(file.num_bytes for file in files),
        "num_layers": target.num_layers,
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
    }


def _finding(check: Callable[[Step], Finding], step: Step) -> Finding:
    try:
        return check(step)
    except ConfigError as error:
        return Finding(Verdict.FAILED, str(error))


def _refuse_if_failed(findings: dict[str, Finding]) -> None:
    """One line for each cause: checks that stumbled over the same file say the same."""
    causes: dict[str, str] = {}
    for name, finding in findings.items():
        if finding.verdict is Verdict.FAILED:
            causes.setdefault(finding.message, name)
    if causes:
        lines = "\n".join(f"  {name}: {message}" for message, name in causes.items())
        raise ConfigError(f"preflight refuses the run:\n{lines}")
