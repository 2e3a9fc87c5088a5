"""The trigger form against the run spec it is made from."""

import pytest
from airflow.sdk.exceptions import AirflowException, ParamValidationError

from eagle3.contract.run_spec import RunSpec
from eagle3.orchestrate.form import form
from eagle3.pipeline.presets import PRESETS

FORM = form("demo")


def test_every_field_of_the_spec_is_in_the_form_with_help():
    assert set(FORM) == {*RunSpec.model_fields, "ssh_conn_id"}
    for name, param in FORM.items():
        assert param.description, name
        assert param.schema["title"], name


def test_an_empty_form_is_valid():
    for param in FORM.values():
        param.resolve()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("preset", "no-such-preset"),
        ("ssh_conn_id", ""),
        ("tensor_parallel_size", 0),
        ("gpu_memory_utilization", 1.5),
        ("num_samples", "many"),
        ("after_blocks", [1, 2]),
        ("epochs", 2.5),
    ],
)
def test_wrong_values_are_refused_by_the_form(name, value):
    with pytest.raises((ParamValidationError, AirflowException, ValueError)):
        FORM[name].resolve(value)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_values_of_every_preset_pass_the_form(preset):
    for name, value in PRESETS[preset].items():
        FORM[name].resolve(value)


def test_the_form_says_what_an_empty_value_means():
    assert "kimi-k2.5: 8" in FORM["tensor_parallel_size"].description
    assert "connection" in FORM["work_dir"].description
