# Everything runs from a virtual environment that `install` makes; the second run of any target finds it ready.
PYTHON ?= python3
BIN := .venv/bin
FAST := -m "not slow" -p no:cacheprovider
COVERED := --cov=policies --cov=gateway.relay.splice --cov=backends.transport.sse --cov-branch --cov-report=term-missing

.PHONY: install demo test check fast slow e2e e2e-pipelines e2e-nixl bench trace clean

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[engine,litellm,dev]'
	touch $@

demo: install
	$(BIN)/pdd demo

test: check fast slow

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fast: install
	$(BIN)/pytest $(FAST) $(COVERED)

slow: install
	$(BIN)/pytest -m "slow and not e2e"

# vLLM and LMCache in an environment of their own (some 3.5 GB); E2E_JSON=FILE writes the figures.
e2e: install .venv-e2e/.installed
	timeout --kill-after=10 1020 $(BIN)/pytest -m "e2e and not nixl" --session-timeout=960 tests/e2e

# The part of it without faults: each pipeline once, exact, and the figures.
e2e-pipelines: install .venv-e2e/.installed
	timeout --kill-after=10 600 $(BIN)/pytest -m "e2e and not nixl" --session-timeout=540 tests/e2e/test_relay.py

# The same engines with NIXL's connector; three of them keep two cores busy even when idle.
e2e-nixl: install .venv-e2e/.installed
	timeout --kill-after=10 600 $(BIN)/pytest -m "e2e and nixl" --session-timeout=540 tests/e2e

.venv-e2e/.installed: tests/e2e/setup.py
	$(BIN)/python -m tests.e2e.setup .venv-e2e
	touch $@

bench: install
	$(BIN)/python -m tests.bench

# What one request and one token call on their way through the gateway; TRACE_JSON=FILE writes the figures.
trace: install
	$(BIN)/python -m tests.bench.trace

clean:
	rm -rf .venv .venv-e2e .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage .hypothesis
