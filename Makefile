# Every target works on a fresh machine: it makes .venv and installs what it needs first.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test test-slow test-gpu test-lowest coverage lint bench bench-autopilot leaderboard faults reproduce architecture \
	tutorials docs docs-serve package clean

demo: .venv/ready
	$(BIN)/langevin demo

test: .venv/ready-test lint
	$(BIN)/pytest

test-slow: .venv/ready-test
	$(BIN)/pytest -m slow

# on a machine with a GPU: what `make test` runs on a simulated device and in Triton's interpreter, and a self-check
test-gpu: .venv/ready-test
	LANGEVIN_TEST_DEVICE=cuda $(BIN)/pytest -n 0 -m "slow or not slow" tests/gpu/on_device.py tests/gpu/interpreter.py
	$(BIN)/langevin doctor --device cuda

# with the oldest versions that pyproject.toml allows (torch 2.6 is a CUDA build: about 3 GB)
test-lowest:
	$(PYTHON) -m venv .venv/lowest && .venv/lowest/bin/python -m pip install --quiet uv
	.venv/lowest/bin/uv pip install --quiet --python .venv/lowest/bin/python --resolution lowest-direct -r pyproject.toml
	.venv/lowest/bin/uv pip install --quiet --python .venv/lowest/bin/python 'pytest>=8' pytest-xdist pytest-timeout hypothesis torchmetrics
	PYTHONPATH=src .venv/lowest/bin/python -m pytest -n $(WORKERS) -o addopts="" -q -m "not slow" -p no:cacheprovider \
		tests/core tests/samplers tests/contract tests/ensembles tests/evaluation tests/diagnostics

# branch coverage of src by the quick tests; half an hour
coverage: .venv/ready-test
	$(BIN)/pytest --cov --cov-report=term --cov-report=html

lint: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# what is in docs/gold already is not run again; peers are compared with where `pip install '.[bench]'` put them
bench-autopilot: .venv/ready-test
	$(BIN)/python -m benchmarks autopilot --out docs/autopilot --summary README.md --sets yacht,concrete,energy,protein,wine-quality-red,power-plant

# days on one core; LEADERBOARD="--sets yacht,energy --splits 5" does a part
leaderboard: .venv/ready-test
	$(BIN)/python -m benchmarks leaderboard --out docs/leaderboard --page docs/leaderboard.md \
		--summary docs/choosing-a-method.md $(LEADERBOARD)

bench: .venv/ready-test
	$(BIN)/python -m benchmarks --out benchmarks
	$(BIN)/python -m benchmarks gold --out docs/gold --page docs/choosing-a-sampler.md
	$(BIN)/python -m benchmarks ranks --out docs/gold --page docs/choosing-a-sampler.md
	$(BIN)/python -m benchmarks support --out docs/networks.md

reproduce: .venv/ready
	$(BIN)/python -m reproductions all --scale quick

# the figure of docs/architecture.md, from the real import graph
architecture: .venv/ready-test
	$(BIN)/python docs/draw_architecture.py

# runs the tutorials whose code has changed, and writes what they print into their pages
tutorials: .venv/ready-docs
	$(BIN)/python docs/tutorials/run.py

docs: tutorials
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python docs/site/check_links.py site

docs-serve: .venv/ready-docs
	$(BIN)/mkdocs serve

# every fault, tried; the figures go into docs/scaling.md
faults: .venv/ready-test
	$(BIN)/pytest -n 0 -m "slow or not slow" --junitxml=.faults.xml -o junit_family=xunit1 \
		tests/storage/test_faults_files.py tests/storage/test_faults_writers.py \
		tests/storage/test_faults_killed.py tests/storage/test_faults_system.py tests/inference/distributed
	$(BIN)/python -m benchmarks scaling --out docs/scaling --page docs/scaling.md --faults .faults.xml

# wheel and sdist, checked; the wheel is installed into an empty environment and runs the quickstart there
package: .venv/ready
	$(PIP) build twine check-wheel-contents
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	rm -rf dist/.venv && $(PYTHON) -m venv dist/.venv
	dist/.venv/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd dist && .venv/bin/langevin --version && .venv/bin/langevin demo --out demo
	rm -rf dist/.venv dist/demo

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache site htmlcov

.venv/python:
	$(PYTHON) -m venv .venv
	touch $@

.venv/ready: .venv/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

.venv/ready-test: .venv/python pyproject.toml constraints.txt
	$(PIP) --editable '.[test]'
	touch $@

.venv/ready-docs: .venv/python pyproject.toml constraints.txt
	$(PIP) --editable '.[docs]'
	touch $@
