"""RunSpec as a table for people: the README's, and what the form says of an empty field. Control side.

`python -m eagle3.pipeline.spec_table` prints the table; a test compares it with the README.
"""

from eagle3.contract.run_spec import RunSpec
from eagle3.pipeline.presets import NIGHTLY_SUFFIX, PRESETS

SHOWN_PRESETS = [name for name in PRESETS if not name.endswith(NIGHTLY_SUFFIX)]


def meaning_of_empty(name: str) -> str:
    """Where a field's value comes from when nobody sets it."""
    by_preset = [f"{preset}: {PRESETS[preset][name]}" for preset in SHOWN_PRESETS if name in PRESETS[preset]]
    if by_preset:
        return ", ".join(by_preset)
    field = RunSpec.model_fields[name]
    return "from the connection's extra" if field.is_required() else str(field.default)


def spec_table() -> str:
    """Markdown, one row a field."""
    rows = ["| value | meaning | " + " | ".join(f"`{preset}`" for preset in SHOWN_PRESETS) + " |"]
    rows.append("|---" * (2 + len(SHOWN_PRESETS)) + "|")
    for name, field in RunSpec.model_fields.items():
        if name == "preset":
            continue
        fallback = "(connection)" if field.is_required() else field.default
        values = [_cell(PRESETS[preset].get(name, fallback)) for preset in SHOWN_PRESETS]
        rows.append(f"| `{name}` | {field.description} | {' | '.join(values)} |")
    return "\n".join(rows)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(f"`{item}`" for item in value) or "none"
    return "none" if value is None else str(value)


if __name__ == "__main__":
    print(spec_table())
