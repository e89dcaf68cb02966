# `make demo` and `make test` need Python 3.11+ and nothing else; both make .venv on first use.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-faults test-verl check clean

demo: .venv/demo
	$(BIN)/hardwon train da3po

test: .venv/test
	$(BIN)/python -m pytest

test-slow: .venv/test
	$(BIN)/python -m pytest -m slow

test-faults: .venv/test
	$(BIN)/python -m pytest tests/faults -m "not slow"

test-verl: .venv-verl/done
	.venv-verl/bin/python -m pytest tests/integrations/test_verl.py tests/integrations/test_verl_trainer.py

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

# What verl's trainer needs over .venv, which stays as it is: this environment looks there for the rest.
.venv-verl/done: tests/requirements-verl-trainer.txt | .venv/test
	$(BIN)/python -m venv .venv-verl
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0], "$(CURDIR)", sep="\n")' > \
		"$$(.venv-verl/bin/python -c 'import site; print(site.getsitepackages()[0])')/hardwon.pth"
	.venv-verl/bin/python -m pip install --quiet --no-deps -r tests/requirements-verl-trainer.txt
	touch $@

.venv/dev: .venv/test
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-verl .pytest_cache .mypy_cache .ruff_cache build *.egg-info
