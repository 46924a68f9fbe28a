# Everything a newcomer needs: `make run` serves the demo, `make test` checks the tree. Both build the venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# A small pool, so that its picture shows single blocks; any flags of `kvproxy serve` may be given instead.
ARGS ?= --num-blocks 1024

# The tools that lock and list what is installed; they stay out of what they look at.
SUPPLY := $(VENV)/supply
SUPPLY_TOOLS := uv==0.13.9 cyclonedx-bom==7.5.0

# Processes that run the tests, each a thread of its own: many tests wait for servers more than they compute.
WORKERS ?= 4

.PHONY: run test lint types build lock sbom clean

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

# What an installation by hashes takes; to be made anew when pyproject.toml or constraints.txt changes.
lock: $(VENV)/.dev $(VENV)/.supply
	$(BIN)/python -m tests.supply.lock $(SUPPLY)/bin/uv

# A bill of materials (CycloneDX) of what is installed, and the SHA-256 of the wheel, in dist/.
sbom: build $(VENV)/.supply
	$(SUPPLY)/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json
	cd dist && sha256sum *.whl sbom.cdx.json | tee SHA256SUMS

$(VENV)/.supply: Makefile | $(VENV)/bin/python
	$(BIN)/python -m venv $(SUPPLY)
	$(SUPPLY)/bin/pip install --quiet $(SUPPLY_TOOLS)
	touch $@

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
