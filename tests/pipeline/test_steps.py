import ast
from pathlib import Path

import pytest

from eagle3.contract.errors import ConfigError
from eagle3.pipeline.steps import STEPS, step_named

REMOTE = Path(__file__).resolve().parents[2] / "include" / "eagle3" / "remote"


def remote_steps() -> list[str]:
    """STEPS of eagle3.remote.__main__, without importing the remote side."""
    for node in ast.parse((REMOTE / "__main__.py").read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "STEPS" for t in node.targets):
            return list(ast.literal_eval(node.value))
    raise AssertionError("no STEPS in eagle3/remote/__main__.py")


def test_both_sides_know_the_same_steps_in_the_same_order() -> None:
    assert [step.name for step in STEPS] == remote_steps()


@pytest.mark.parametrize("name", remote_steps())
def test_each_step_is_a_module_with_run(name: str) -> None:
    module = ast.parse((REMOTE / f"{name}.py").read_text())
    assert "run" in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}


def test_limits_are_usable() -> None:
    for step in STEPS:
        assert step.max_runtime_seconds > 0
        assert step.retries >= 0
        assert step.title
        assert step.stall_seconds["default"] > 0


def test_an_unknown_step_lists_the_known() -> None:
    assert step_named("train_draft").title == "Train the draft"
    with pytest.raises(ConfigError, match=r"train_it.*train_draft"):
        step_named("train_it")
