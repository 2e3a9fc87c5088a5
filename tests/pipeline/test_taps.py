import pytest

from eagle3.contract.errors import ConfigError
from eagle3.pipeline.taps import CONVENTIONS, after_blocks, check_taps, default_taps

KIMI = [1, 29, 57, 60]


@pytest.mark.parametrize(
    ("convention", "ids"),
    [
        ("after_block", [1, 29, 57, 60]),
        ("vllm", [2, 30, 58, 61]),
        ("speculators", [2, 30, 58, 61]),
        ("speculators-0.4", [1, 29, 57, 60]),
        ("specforge", [1, 29, 57, 60]),
        ("modelopt", [1, 29, 57, 60]),
        ("torchspec", [1, 29, 57, 60]),
    ],
)
def test_the_same_tensors_in_every_convention(convention: str, ids: list[int]) -> None:
    assert after_blocks(ids, convention, num_layers=61) == KIMI


def test_every_convention_is_covered() -> None:
    assert after_blocks([2, 30, 58], "transformers") == [1, 29, 57]
    assert set(CONVENTIONS) == {
        *("after_block", "vllm", "speculators", "speculators-0.4", "specforge", "modelopt", "torchspec", "transformers")
    }


def test_old_defaults_given_to_todays_engine_are_refused() -> None:
    assert after_blocks([2, 30, 58, 60], "speculators-0.4", num_layers=61) == [2, 30, 58, 60]
    with pytest.raises(ConfigError, match="after block 60"):  # the label would be one block too early
        after_blocks([2, 30, 58, 60], "vllm", num_layers=61)


def test_the_normed_state_is_no_label() -> None:
    with pytest.raises(ConfigError, match="final norm"):
        after_blocks([2, 30, 58, 61], "transformers", num_layers=61)


def test_an_id_below_the_first_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="start at 1"):
        after_blocks([0, 2, 3, 4], "vllm")


def test_an_unknown_convention_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"sglang.*vllm"):
        after_blocks([1], "sglang")


@pytest.mark.parametrize("blocks", [[1, 1, 5, 7], [5, 3, 6, 7], [1, 3, 4, 8], [1, 3, 4, 6], []])
def test_wrong_taps_are_refused(blocks: list[int]) -> None:
    with pytest.raises(ConfigError):
        check_taps(blocks, num_layers=8)


def test_default_taps() -> None:
    assert default_taps(61) == KIMI
    assert default_taps(30) == [1, 14, 26, 29]
    for num_layers in range(7, 130):
        check_taps(default_taps(num_layers), num_layers)
    with pytest.raises(ConfigError, match="set after_blocks"):
        default_taps(6)
