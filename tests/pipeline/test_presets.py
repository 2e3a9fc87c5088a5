import pytest

from eagle3.contract.errors import ConfigError
from eagle3.contract.run_spec import RunSpec
from eagle3.pipeline.presets import PRESETS, resolve

HOST = {"work_dir": "/data/eagle3", "host_python": "/data/venv/bin/python"}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_valid_run(preset: str) -> None:
    spec = resolve(preset, HOST)
    assert spec.preset == preset
    assert spec.train_seq_len >= spec.max_model_len, "a whole row must fit into a training step"
    assert not {"work_dir", "host_python", "preset"} & set(PRESETS[preset])


def test_kimi_has_the_taps_of_the_engine() -> None:
    spec = resolve("kimi-k2.5", HOST)
    assert spec.engine_layer_ids == [2, 30, 58, 61]
    assert (spec.tensor_parallel_size, spec.num_samples, spec.draft_vocab_size) == (8, 10_000, 32_000)


def test_none_means_from_the_preset() -> None:
    wishes = {**dict.fromkeys(RunSpec.model_fields), **HOST, "num_samples": 12}
    spec = resolve("demo", wishes)
    assert spec.num_samples == 12
    assert spec.max_model_len == PRESETS["demo"]["max_model_len"]
    assert spec.seed == 0


def test_zero_and_empty_are_wishes() -> None:
    spec = resolve("kimi-k2.5", {**HOST, "temperature": 0.0, "server_args": [], "trust_remote_code": False})
    assert (spec.temperature, spec.server_args, spec.trust_remote_code) == (0.0, [], False)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"kimi'.*demo, toy, kimi-k2\.5"):
        resolve("kimi", HOST)
    with pytest.raises(ConfigError, match=r"epoch: unknown; allowed are .*epochs"):
        resolve("demo", {**HOST, "epoch": 3})
    with pytest.raises(ConfigError, match="host_python"):
        resolve("demo", {"work_dir": "/data"})


@pytest.mark.parametrize("arguments", [["--api-key", "s3cret-value"], ["--hf-token=s3cret-value"]])
def test_a_secret_among_the_server_arguments_is_refused_unsaid(arguments: list[str]) -> None:
    """Row 20 of the faults. Seen to fail without the validator of `server_args`."""
    with pytest.raises(ConfigError, match="login environment") as refusal:
        resolve("demo", {**HOST, "server_args": arguments})
    assert "s3cret" not in str(refusal.value)
