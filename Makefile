# Two commands for a newcomer: make demo, make test. Both do all their set-up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check setup clean

demo: setup  ## train on the embedded data, compare, index, open the page (ARGS=--no-serve to end)
	$(BIN)/transhash demo $(ARGS)

test: setup  ## all tests (ARGS='-k name' for some)
	$(BIN)/python -m pytest $(ARGS)

check: setup  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: .venv/ready

.venv/ready: pyproject.toml setup.py $(wildcard src/transhash/index/*.c)
	$(PYTHON) -c 'import sys; sys.exit("transhash needs Python 3.11 or newer; use make PYTHON=...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[serve,plots,milvus,dev]'
	touch $@

clean:
	rm -rf .venv build runs
