# Everything a newcomer needs: `make run` serves the demo, `make test` checks the tree. Both build the venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# A small pool, so that its picture shows single blocks; any flags of `kvproxy serve` may be given instead.
ARGS ?= --num-blocks 1024

# Processes that run the tests, each a thread of its own: many tests wait for servers more than they compute.
WORKERS ?= 4

.PHONY: run test lint types build clean

run: $(VENV)/.run
	$(BIN)/kvproxy serve $(ARGS)

test: $(VENV)/.dev lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

build: $(VENV)/.dev
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.run
