# Simulation: more seeds than `make test` plays. SEEDS, FIRST: how many, from which on.
SEEDS ?= 20000
FIRST ?= 0

.PHONY: sim

sim: $(VENV)/.ready
	cd tests && ../$(BIN)/python -m simulation.run --seeds $(SEEDS) --first $(FIRST)
