# Everything runs from a virtual environment that `install` makes; the second run of any target finds it ready.
PYTHON ?= python3
PORT ?= 8000
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
FAST := -m "not slow" -p no:cacheprovider -n 2
COVERED := tests/policies tests/gateway/relay/test_splice.py tests/backends/transport/test_sse.py
COVERAGE := --cov=policies --cov=gateway.relay.splice --cov=backends.transport.sse --cov-branch --cov-report=term-missing
QUICK := tests/policies tests/gateway
SLOW := -m "slow and not e2e"

.PHONY: install demo test quick check fast slow kv-faults ui-test screens e2e e2e-pipelines e2e-families e2e-gpu e2e-on-gpu \
	e2e-nixl bench bench-gateway trace conformance compat compat-agents chaos soak mutate sbom clean

install: .venv/.installed

.venv/.installed: .venv/.demo
	@echo "Installing what the checks and the tests need beside the demo's packages."
	$(PIP) --quiet --editable '.[engine,litellm,otel,dev]'
	touch $@

.venv/.demo: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing what the demo needs into .venv: torch, transformers, LMCache and the gateway itself, some 1.8 GB."
	$(PIP) --progress-bar on --editable '.[engine]'
	touch $@

demo: .venv/.demo
	$(BIN)/pdd demo --listen 127.0.0.1:$(PORT)

test: check fast slow

# For the inner loop; mypy is quick from its second run on.
quick: check
	$(BIN)/pytest $(FAST) $(QUICK)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Only what has to be covered whole is run under coverage, which doubles the time.
fast: install
	$(BIN)/pytest $(FAST) $(COVERAGE) $(COVERED)
	$(BIN)/pytest $(FAST) $(COVERED:%=--ignore=%)

# The operator's page in a headless Chromium (Debian's `chromium`, or the one that CHROMIUM names).
ui-test: install
	$(BIN)/pytest tests/ui

# Pictures of every view, to be looked at; they are written to SCREENS.
SCREENS ?= screens
screens: install
	mkdir -p $(SCREENS)
	SCREENS=$(SCREENS) $(BIN)/pytest tests/ui

# The tests of whole regions mind how long things take, so that they have the machine to themselves.
slow: install
	$(BIN)/pytest $(SLOW) -n 2 --dist loadfile --ignore=tests/integration --ignore=tests/ui
	$(BIN)/pytest $(SLOW) tests/integration tests/ui

# One side's KV is wrong, in each of five ways, over the demo's processes; KV_JSON=FILE writes the figures.
kv-faults: install
	$(BIN)/python -m tests.integration.kv_faults

# vLLM and LMCache in an environment of their own (some 3.5 GB); E2E_JSON=FILE writes the figures.
# Twice the time that it takes on two idle cores: others may be at work.
e2e: install .venv-e2e/.installed
	timeout --kill-after=10 2400 $(BIN)/pytest -m "e2e and not nixl" --session-timeout=2340 tests/e2e

# The part of it without faults: each pipeline once, exact, and the figures.
e2e-pipelines: install .venv-e2e/.installed
	timeout --kill-after=10 600 $(BIN)/pytest -m "e2e and not nixl" --session-timeout=540 tests/e2e/test_relay.py

# Models whose KV is laid out in ways of their own: MLA, sliding windows, an adapter, data-parallel and tensor-parallel ranks.
e2e-families: install .venv-e2e/.installed
	timeout --kill-after=10 1200 $(BIN)/pytest -m "e2e and families" --session-timeout=1140 tests/e2e

# Three instances on one NVIDIA GPU: each pipeline once, exact, and the figures.
e2e-gpu: install
	@if nvidia-smi -L 2>/dev/null | grep -q ^GPU; then $(MAKE) e2e-on-gpu; else echo "NOT RUN: e2e-gpu needs an NVIDIA GPU"; fi

e2e-on-gpu: .venv-e2e-gpu/.installed
	E2E_GPU=1 E2E_VENV=.venv-e2e-gpu timeout --kill-after=10 600 $(BIN)/pytest -m e2e --session-timeout=540 tests/e2e/test_relay.py

# The same engines with NIXL's connector; three of them keep two cores busy even when idle.
e2e-nixl: install .venv-e2e/.installed
	timeout --kill-after=10 600 $(BIN)/pytest -m "e2e and nixl" --session-timeout=540 tests/e2e

.venv-e2e/.installed: tests/e2e/setup.py
	$(BIN)/python -m tests.e2e.setup .venv-e2e
	touch $@

.venv-e2e-gpu/.installed: tests/e2e/setup.py
	$(BIN)/python -m tests.e2e.setup .venv-e2e-gpu gpu
	touch $@

bench: install
	$(BIN)/python -m tests.bench

# CPU of the whole gateway in each plan beside a raw copy and nginx; BENCH_JSON=FILE writes the figures.
bench-gateway: install
	$(BIN)/python -m tests.bench gateway

# How this gateway reads and writes beside others, as figures; CONFORMANCE_JSON=FILE writes them, CONFORMANCE_WHEELS=FOLDER
# keeps what it downloads. A part that cannot run says why.
conformance: install
	$(BIN)/python -m tests.conformance_run

# Real clients in environments of their own (some 1 GB) before relays over scripted engines: the part of `conformance` that
# is about them.
compat: install .venv-compat/.installed
	$(BIN)/python -m tests.conformance_run clients

# Claude Code and Codex as people run them (some 700 MB by npm), without an account, before a relay: one tool is called.
compat-agents: install .venv-compat/command_lines/.installed
	$(BIN)/python -m tests.compat.command_lines .venv-compat/command_lines

.venv-compat/command_lines/.installed:
	mkdir -p $(@D)
	npm install --prefix $(@D) --no-audit --no-fund --ignore-scripts @anthropic-ai/claude-code @openai/codex
	touch $@

.venv-compat/.installed: tests/compat/setup.py tests/compat/table.py
	$(BIN)/python -m tests.compat.setup .venv-compat
	touch $@

# What one request and one token call on their way through the gateway; TRACE_JSON=FILE writes the figures.
trace: install
	$(BIN)/python -m tests.bench.trace

# A bad day: everything is killed and one tenant is hostile; CHAOS_JSON=FILE writes the figures, CHAOS_S sets the length.
chaos: install
	timeout --kill-after=10 900 $(BIN)/python -m tests.chaos

# Mixed load for ten minutes (SOAK_S), after which nothing may have grown; SOAK_JSON=FILE writes the figures.
soak: install
	$(BIN)/python -m tests.chaos.soak

# Changes one thing after the other in a sample of modules, and prints what their tests did not notice (MUTANTS, MUTATE_SEED).
mutate: install
	$(BIN)/python -m tests.mutate

# What is installed, as a CycloneDX list: make sbom > sbom.json
sbom: install
	@$(BIN)/python -m tests.sbom

clean:
	rm -rf .venv .venv-e2e .venv-e2e-gpu .venv-compat .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage .hypothesis
