"""How two servers' greedy answers are compared."""

from eagle3.remote.evaluation import compare_outputs


def test_identical_and_first_divergence() -> None:
    plain = {"a": [1, 2, 3], "b": [4, 5, 6, 7], "c": [8, 9], "only_here": [1]}
    draft = {"a": [1, 2, 3], "b": [4, 5, 6, 0], "c": [8], "only_there": [2]}
    assert compare_outputs(plain, draft) == {
        "outputs_compared": 3,
        "outputs_identical": 1,
        "outputs_different": 2,
        "first_divergence": {"id": "c", "position": 1},
    }


def test_no_divergence() -> None:
    assert compare_outputs({"a": [1]}, {"a": [1]})["first_divergence"] is None
