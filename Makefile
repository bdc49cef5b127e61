# Every habit is one line. Each target sets up what it needs; a second run starts in seconds.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0

.PHONY: demo test test-integration kubernetes lint bench docs clean help

demo: $(VENV)/.ready
	$(BIN)/aegis demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest -m "not integration" -n 3 --dist loadfile tests

test-integration: $(VENV)/.ready
	tests/integration/support/packages.sh
	$(BIN)/python -m pytest -m integration tests

# Once per machine, into a cache outside of the tree; without it the tests on a real Kubernetes are skipped, and say so.
kubernetes:
	tests/integration/support/build_kubernetes.sh

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/house

docs: $(VENV)/.ready
	$(BIN)/python -m aegis_proto.docs docs
	$(BIN)/python -m aegis_master.docs

bench: $(VENV)/.ready
	$(BIN)/python bench/run_all.py

# torch first and by pip alone: no resolver may choose another build.
$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q torch==$(TORCH)
	$(BIN)/pip install -q -e '.[demo,dev]'
	touch $@

clean:
	rm -rf $(VENV)

help:
	@sed -n '/^make /p' CONTRIBUTING.md

-include tests/simulation/sim.mk
-include spec/spec.mk
