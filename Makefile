# `make demo` and `make test` need Python 3.11+ and nothing else; both make .venv on first use.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-faults check clean

demo: .venv/demo
	$(BIN)/hardwon train da3po

test: .venv/test
	$(BIN)/python -m pytest

test-slow: .venv/test
	$(BIN)/python -m pytest -m slow

test-faults: .venv/test
	$(BIN)/python -m pytest tests/faults -m "not slow"

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hardwon needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

.venv/demo: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

# verl's own pins exclude the transformers that TRL wants; its algorithms import without them.
.venv/test: pyproject.toml constraints.txt tests/requirements-verl.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	$(BIN)/python -m pip install --quiet --no-deps -r tests/requirements-verl.txt
	touch $@ .venv/demo

.venv/dev: .venv/test
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build *.egg-info
