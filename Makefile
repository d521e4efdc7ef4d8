# make help says what there is. Everything is installed into .venv, at the versions of constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,data,simulation

CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install demo test lint types check slow bench torture flower-demo flower-torture mutation clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(DEV) ## make .venv with every extra and the developer tools

demo: $(CORE) ## run the demonstration (installs only what it needs)
	@$(BIN)/fedforget demo --plot fedforget-demo.png

test: $(DEV) ## run the fast tests
	$(PYTEST) -m "not slow"

lint: $(DEV) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV) ## mypy, strict on the package
	$(BIN)/mypy

slow: $(DEV) ## run only the slow proofs
	$(PYTEST) -m slow

check: lint types test slow ## all of it: lint, types, fast tests, slow proofs

bench: $(DEV) ## run the benchmarks
	$(BIN)/python benchmarks/run.py

torture: $(DEV) ## every crash point, every damage, long lives; writes docs/reliability.md
	$(BIN)/python tests/torture.py

flower-demo: $(DEV) ## five clients on Flower: train, erase at a client and at the server, verify
	$(BIN)/python -m tests.flower_demo

flower-torture: $(DEV) ## faults of a deployment on real processes
	$(BIN)/python -m tests.flower_torture

mutation: $(DEV) ## 500 mutants made by cosmic-ray; writes its section of docs/reliability.md
	$(PIP_INSTALL) "cosmic-ray>=8.7,<9"
	$(BIN)/python tests/mutation.py

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) .benchmarks build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Each stamp says that its install finished, for these versions of the two files. A developer install is a core
# install too, so it sets both.

define make_venv
@command -v $(PYTHON) >/dev/null || { \
	echo "$(PYTHON) was not found. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "FedForget needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
		"Name a newer one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
@$(PYTHON) -m venv $(VENV)
endef

$(CORE): pyproject.toml constraints.txt
	$(make_venv)
	@echo "Installing FedForget into $(VENV) (about a minute) ..."
	@$(PIP_INSTALL) -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt
	$(make_venv)
	@echo "Installing FedForget and the developer tools into $(VENV) (two to three minutes) ..."
	@$(PIP_INSTALL) -e ".[$(EXTRAS)]"
	@touch $(CORE) $@
