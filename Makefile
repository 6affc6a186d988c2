# Start here: make demo, make test. Both create .venv and install everything they need.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint .ci/constraints.txt  # the versions that passed the tests
SOURCES := pyproject.toml setup.py $(wildcard src/transhash/index/*.c)

# Test files in parallel. Tests that need minutes, a browser or a server run in test-slow.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile
SLOW := slow or browser or server

.PHONY: demo test test-slow mutants check docs sbom setup clean

demo: setup  ## run the full pipeline on synthetic data, open the search page (ARGS=--no-serve to stop before it)
	$(BIN)/transhash demo $(ARGS)

test: .venv/tools  ## run the fast tests (ARGS='-k name' selects)
	$(PYTEST) -m 'not ($(SLOW))' $(ARGS)

test-slow: .venv/tools  ## run fault injection, torchrun and installs; search page and Milvus if Chromium and a server are there
	$(PYTEST) -m '$(SLOW)' $(ARGS)

mutants: .venv/tools  ## plant small faults and check that a test fails for each (ARGS='--changed REF' for changed files)
	$(BIN)/python tests/mutation.py $(ARGS)

check: .venv/tools  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Without --quiet, which would hide warnings from --strict.
docs: .venv/docs  ## build the site, build/site/index.html; fail on warnings and on scripts of other hosts
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@! grep -rE '<(script|link)[^>]+(src|href)="?https?:' --include='*.html' build/site
	@echo build/site/index.html

sbom: .venv/tools  ## list packages and SHA-256 of model files in build/sbom.json
	$(BIN)/python .ci/release.py sbom

setup: .venv/ready  ## create .venv and install

.venv/ready: $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit("transhash needs Python 3.11 or newer: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	rm -f src/transhash/index/_hamming*.so  # built for one Python version, it would hide the new one
	$(INSTALL) -e '.[serve,plots]'
	touch $@

.venv/tools: .venv/ready
	$(INSTALL) -e '.[serve,plots,milvus,dev]'
	touch $@

.venv/docs: .venv/ready
	$(INSTALL) -e '.[docs]'
	touch $@

clean:
	rm -rf .venv build runs
