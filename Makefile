# Two commands for a newcomer: `make demo` and `make test`. Everything is installed into .venv and .venv-host.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: setup demo up down test check test-fast

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

test: check
	@$(BIN)/python -m pytest -n 2 --dist loadgroup

# Without vLLM, training and Airflow runs: under a minute.
test-fast: setup
	@$(BIN)/python -m pytest -m "not live"
