"""The trigger form: Airflow Params made from RunSpec, so that form, spec and README cannot drift apart."""

from typing import Any

from airflow.sdk import Param

from eagle3.contract.run_spec import RunSpec
from eagle3.pipeline.names import SSH_CONN_ID
from eagle3.pipeline.presets import PRESETS
from eagle3.pipeline.spec_table import meaning_of_empty

_FIRST_FIELDS = ("model_path", "num_samples", "epochs", "after_blocks")


def form(default_preset: str) -> dict[str, Param]:
    """One Param a field of RunSpec. An empty value means: from the preset (or, for the host's, from the connection)."""
    params = {
        "preset": Param(
            default_preset,
            type="string",
            enum=list(PRESETS),
            title="Preset",
            description="Where every value that is left empty comes from.",
        ),
        "ssh_conn_id": Param(
            SSH_CONN_ID,
            type="string",
            minLength=1,
            title="Host connection",
            description="Airflow connection (type ssh) of the GPU host.",
        ),
    }
    properties = RunSpec.model_json_schema()["properties"]
    names = [*_FIRST_FIELDS, *(name for name in properties if name not in _FIRST_FIELDS and name != "preset")]
    for name in names:
        section = None if name in _FIRST_FIELDS else properties[name]["section"]
        params[name] = _param(name, properties[name], section)
    return params


def _param(name: str, schema: dict[str, Any], section: str | None) -> Param:
    kinds = [kind for option in schema.get("anyOf", [schema]) if (kind := option["type"]) != "null"]
    limits = {key: value for key, value in schema.items() if key in _LIMITS}
    return Param(
        None,
        type=["null", *kinds],
        title=schema["title"],
        description=f"{schema['description']} Empty: {meaning_of_empty(name)}.",
        section=section,
        **limits,
    )


_LIMITS = frozenset(
    {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minLength",
        "minItems",
        "maxItems",
        "items",
    }
)
