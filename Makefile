# Two commands for a newcomer: make demo, make test. Both do all their set-up.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := pyproject.toml setup.py $(wildcard src/transhash/index/*.c)

# Files of tests side by side, one process a core; what needs minutes, a browser or a server is apart.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile
APART := slow or browser or server

.PHONY: demo test test-slow mutants check docs setup clean

demo: setup  ## train on the embedded data, compare, index, open the page (ARGS=--no-serve to end)
	$(BIN)/transhash demo $(ARGS)

test: .venv/tools  ## the tests (ARGS='-k name' for some)
	$(PYTEST) -m 'not ($(APART))' $(ARGS)

test-slow: .venv/tools  ## kills, bit flips, torchrun, installs; with Chromium the page, with Milvus a server
	$(PYTEST) -m '$(APART)' $(ARGS)

mutants: .venv/tools  ## does a test notice each of some fifty small faults?
	$(BIN)/python tests/mutation.py $(ARGS)

check: .venv/tools  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Not --quiet, which hides warnings from --strict, too.
docs: .venv/docs  ## the site, build/site/index.html; a warning fails, or a script of another host
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@! grep -rE '<(script|link)[^>]+(src|href)="?https?:' --include='*.html' build/site
	@echo build/site/index.html

setup: .venv/ready  ## only make .venv and install into it

.venv/ready: $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit("transhash needs Python 3.11 or newer: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	rm -f src/transhash/index/_hamming*.so  # one for this Python alone would be taken before the new one
	$(PIP) install --quiet -e '.[serve,plots]'
	touch $@

.venv/tools: .venv/ready
	$(PIP) install --quiet -e '.[serve,plots,milvus,dev]'
	touch $@

.venv/docs: .venv/ready  # reads sources, so that what is installed stays as it is
	$(PIP) install --quiet -e '.[docs]'
	touch $@

clean:
	rm -rf .venv build runs
