# Two commands for a newcomer: `make demo` and `make test`. Everything is installed into .venv and .venv-host.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: setup demo up down test check soak eta test-fast test-airflow test-others

setup:
	@$(PYTHON) include/eagle3/demo/bootstrap.py

demo: setup
	@$(BIN)/eagle3 demo

up: setup
	@$(BIN)/eagle3 up

down:
	@if [ -x $(BIN)/eagle3 ]; then $(BIN)/eagle3 down; fi

# Linters, types, import contracts.
check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@PATH=$(BIN):$$PATH PYTHONPATH=include $(BIN)/lint-imports

# Two processes side by side: the tests that run in a live Airflow, and all others.
test: check
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-airflow test-others

test-airflow:
	@$(BIN)/python -m pytest -m airflow

test-others:
	@$(BIN)/python -m pytest -m "not airflow"

# Without vLLM, training and Airflow runs: under a minute.
test-fast: setup
	@$(BIN)/python -m pytest -m "not live"

# Kills everything around some jobs at random, for eight minutes: none may be lost, none may run twice.
soak: setup
	@$(BIN)/python tests/soak/soak.py

# How far off the ETA is, against the bar's own and the naive mean.
eta: setup
	@$(BIN)/python tests/eta_replay.py
