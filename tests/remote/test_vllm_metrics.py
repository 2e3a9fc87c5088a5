"""Counters from the text that a vLLM 0.32 server really gave."""

import pytest

from eagle3.remote.vllm_metrics import Metrics, Speculation

BEFORE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="toy"} 2.0
vllm:num_requests_waiting{engine="0",model_name="toy"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="toy",reason="capacity"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="toy"} 100.0
vllm:generation_tokens_total{engine="0",model_name="toy"} 1.0e+02
vllm:spec_decode_num_drafts_total{engine="0",model_name="toy"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="toy"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="toy"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="toy",position="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="toy",position="1"} 1.0
"""
AFTER = """\
vllm:spec_decode_num_drafts_total{engine="0",model_name="toy"} 30.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a \\"b\\", c"} 80.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="toy"} 330.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="toy"} 105.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="toy",position="1"} 41.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="toy",position="0"} 64.0
"""


def test_gauges_and_counters() -> None:
    metrics = Metrics.parse(BEFORE)
    assert metrics.requests_in_flight == 3
    assert metrics.tokens_processed == 200
    assert metrics.total("vllm:no_such_counter") is None


def test_speculation_is_the_difference_over_all_engines() -> None:
    speculation = Speculation.between(Metrics.parse(BEFORE), Metrics.parse(AFTER))
    assert speculation is not None
    assert (speculation.drafts, speculation.draft_tokens, speculation.accepted) == (100, 300, 100)
    assert speculation.acceptance_length == pytest.approx(2.0)
    assert speculation.acceptance_per_position == pytest.approx([0.6, 0.4])


def test_a_plain_server_has_no_speculation() -> None:
    plain = Metrics.parse('vllm:generation_tokens_total{engine="0"} 3.0\n')
    assert Speculation.between(plain, plain) is None
