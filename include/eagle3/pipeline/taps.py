"""Layer taps: the ids of other projects → `after_block`, the physical meaning that a run spec stores. Control side.

Block b of n is counted from 0. The same id means different tensors in different projects, and a label taken one block
too early caps the acceptance of the draft without any error.
"""

from collections.abc import Sequence
from itertools import pairwise

from eagle3.contract.errors import ConfigError

# Convention → the id of the output of block 0.
CONVENTIONS = {
    "after_block": 0,
    "vllm": 1,
    "speculators": 1,  # since 0.5
    "speculators-0.4": 0,  # and 0.3
    "specforge": 0,
    "modelopt": 0,
    "torchspec": 0,
    "transformers": 1,  # hidden_states[k]; [n] is already normed and cannot be a label
}
MIN_LAYERS = 7


def after_blocks(ids: Sequence[int], convention: str, num_layers: int | None = None) -> list[int]:
    """The blocks after whose output the ids tap, in the same order.

    Raises ConfigError for an unknown convention, an id that is no block's output, and, where `num_layers` is known,
    for what `check_taps` finds.
    """
    if convention not in CONVENTIONS:
        raise ConfigError(f"unknown layer-id convention {convention!r}; known are {', '.join(CONVENTIONS)}")
    first = CONVENTIONS[convention]
    if too_low := [id_ for id_ in ids if id_ < first]:
        raise ConfigError(f"{convention} layer ids start at {first} (the output of block 0), got {too_low}")
    if convention == "transformers" and num_layers is not None and num_layers in ids:
        raise ConfigError(
            f"transformers' hidden_states[{num_layers}] is taken after the final norm and cannot be the label source: "
            f"give the ids in another convention, where block {num_layers - 1} has one"
        )
    blocks = [id_ - first for id_ in ids]
    if num_layers is not None:
        check_taps(blocks, num_layers)
    return blocks


def check_taps(blocks: Sequence[int], num_layers: int) -> None:
    """Raises ConfigError unless the blocks rise, exist, and end with the final block, the label source."""
    if any(later <= earlier for earlier, later in pairwise(blocks)):
        raise ConfigError(f"taps must rise and not repeat, got after blocks {list(blocks)}")
    if not blocks or blocks[-1] != num_layers - 1:
        raise ConfigError(
            f"the last tap is the label source and must be after block {num_layers - 1}, the final one of "
            f"{num_layers}; got after blocks {list(blocks)}: were the ids given in the convention they come from?"
        )


def default_taps(num_layers: int) -> list[int]:
    """Low, middle, high and final block: [1, n//2 - 1, n - 4, n - 1], which vLLM 0.32 calls [2, n//2, n - 3, n].

    Raises ConfigError for a target of fewer than MIN_LAYERS blocks, where these coincide.
    """
    if num_layers < MIN_LAYERS:
        raise ConfigError(f"{num_layers} blocks are too few for default taps (at least {MIN_LAYERS}): set after_blocks")
    return [1, num_layers // 2 - 1, num_layers - 4, num_layers - 1]
