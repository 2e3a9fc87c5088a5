import pytest

from eagle3.pipeline.secrets import redact


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("using token hf_AbCdEfGhIjKlMnOpQrStUvWx", "hf_AbCdEfGhIjKlMnOpQrStUvWx"),
        ("curl -H 'Authorization: Bearer eyJhbGciOi.x.y' http://h", "eyJhbGciOi.x.y"),
        ("vllm serve m --api-key s3cret-value --port 1", "s3cret-value"),
        ("vllm serve m --api-key=s3cret-value --port 1", "s3cret-value"),
        ("non-default args: {'model': 'm', 'api_key': ['s3cret-value'], 'port': 1}", "s3cret-value"),
        ("export VLLM_API_KEY=s3cret-value", "s3cret-value"),
        ("export HF_TOKEN=abc", "abc"),
        ("proxy http://me:passw0rd@proxy:3128/", "passw0rd"),
        ("-----BEGIN OPENSSH PRIVATE KEY----- b3BlbnNzaC1rZXk", "b3BlbnNzaC1rZXk"),
    ],
)
def test_a_secret_is_masked_and_the_rest_stays(line, secret):
    masked = redact(line)
    assert secret not in masked
    assert "***" in masked
    assert redact(masked) == masked


@pytest.mark.parametrize(
    "line",
    [
        "Loading safetensors checkpoint shards:  66% Completed | 42/64 [16:21<08:30, 23.21s/it]",
        "eos_token='</s>', num_tokens=21000000, token_ids=[1, 2]",
        "GET http://127.0.0.1:8100/health 200 OK",
        "task-scheduler sk-learn hf_hub_download hf_transfer",
    ],
)
def test_everything_else_is_left_alone(line):
    assert redact(line) == line
