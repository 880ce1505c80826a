# Two commands matter: `make demo` and `make test`. Each sets up all it needs first.
# On a busy machine: make demo DEMO="--seconds 200"
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test setup lint unit lock clean

demo: setup
	$(BIN)/understudy demo $(DEMO)

test: setup lint unit

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Understudy needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "Installing the locked dependencies, Spark and Java among them: this takes a minute or two"
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(BIN)/understudy setup
	@touch $(READY)

lint: setup
	$(BIN)/ruff check src tests studies
	$(BIN)/ruff format --check src tests studies
	$(BIN)/mypy

# Tests that start a Spark have the machine to themselves.
unit: setup
	$(BIN)/python -m pytest -m "not spark and not cluster" --numprocesses logical --dist loadfile
	$(BIN)/python -m pytest -m "spark or cluster"

# Writes the lock anew from pyproject.toml. Run it when a dependency changes, and commit the result.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv
	build/lock/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--extra dev --python-version 3.11 --upgrade -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
