# Every command a contributor needs. `make demo` and `make test` set everything up by themselves.
.DEFAULT_GOAL := help
PYTHON ?= python3
UV_VERSION := 0.13.8
UV := .uv/bin/uv
BIN := .venv/bin
STAMP := .venv/.ready
PYPROJECTS := $(wildcard schemas/pyproject.toml libs/*/pyproject.toml services/*/pyproject.toml \
  tools/*/pyproject.toml worker/pyproject.toml cli/pyproject.toml)
MEMBERS := $(PYPROJECTS:%/pyproject.toml=%)
OWN = $(foreach p,$(PYPROJECTS),--no-emit-package $(shell sed -n 's/^name = "\(.*\)"/\1/p' $(p)))
export PATH := $(CURDIR)/$(BIN):$(PATH)
export VIRTUAL_ENV := $(CURDIR)/.venv
export UV_HTTP_TIMEOUT ?= 180
# Hundreds of processes start here; none compiles again what another has compiled.
unexport PYTHONDONTWRITEBYTECODE
# Caches and virtual environment may lie on different file systems.
export UV_LINK_MODE ?= $(if $(CI),copy,hardlink)

.PHONY: help setup lock wheels up demo test all-tests lint-log test-unit test-gpu test-limits test-kube lint format soak fuzz load upgrade chaos bench bench-scheduler bench-worker bench-tracker bench-console screenshots clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

$(UV):
	@echo "setting up: uv $(UV_VERSION)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Gangline needs Python 3.11 or newer; set PYTHON=python3.x"; exit 2; }
	@$(PYTHON) -m venv .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(STAMP): $(UV) requirements.lock $(PYPROJECTS)
	@echo "setting up: the locked packages (about 7 GB, mostly torch; minutes on the first run)"
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) .venv
	@$(UV) pip sync --quiet --require-hashes --compile-bytecode requirements.lock
	@$(UV) pip install --quiet --no-deps --no-build-isolation $(MEMBERS:%=-e ./%)
	@$(BIN)/python -m gangline.local.console_files
	@echo "setting up: Java's cache for the embedded broker (10 s, once per machine)"
	@$(BIN)/python -m gangline.local.aot_cache || echo "no cache: each start of the broker takes 1 s longer"
	@touch $(STAMP)

wheels: $(STAMP) ## build the wheels of all parts into dist
	@rm -rf dist
	@for member in $(MEMBERS); do $(UV) build --quiet --wheel --no-build-isolation --out-dir dist ./$$member || exit 1; done
	@ls dist

setup: $(STAMP) ## install everything into .venv

lock: $(UV) ## resolve requirements.lock again
	$(UV) pip compile --quiet --upgrade --universal --generate-hashes --no-header --python-version 3.11 $(OWN) \
	  requirements.in $(PYPROJECTS) -o requirements.lock

PYTEST := $(BIN)/python -m pytest

up: $(STAMP) ## start the embedded platform in the foreground
	@$(BIN)/gangline up

demo: $(STAMP) ## one job's whole life through a failure, on this machine
	@$(BIN)/gangline demo

test: $(STAMP) ## everything that CI runs
	@$(MAKE) --no-print-directory --jobs 2 --keep-going lint-log all-tests; code=$$?; \
	  cat build/lint.log; exit $$code

lint-log: $(STAMP)
	@mkdir -p build
	@$(MAKE) --no-print-directory lint > build/lint.log 2>&1

# tests/order.py says what each worker takes: one computes at the lowest priority.
WORKERS ?= 3
all-tests: $(STAMP)
	@rm -rf .pytest_cache
	@$(PYTEST) -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	  -m 'not nightly' --max-worker-restart 0 --durations 12 --durations-min 5 --junitxml build/test-report.xml tests \
	  || $(BIN)/python tests/second_try.py $$?

test-unit: $(STAMP) ## the fast part
	@$(PYTEST) -q -n auto --dist loadfile tests/unit

test-limits: $(STAMP) ## ways out of a node with control groups, on a kernel that has them
	@PYTHONPATH=tests $(BIN)/python -m limits -q

test-kube: $(STAMP) ## the Helm chart, nodes and 1,000 TrainingJobs on a real Kubernetes control plane; needs Go
	@PYTHONPATH=tests $(BIN)/python -m kube -q

test-gpu: $(STAMP) ## tests that need GPUs (one, some two); skipped where there are none
	@$(PYTEST) -q -rs -m gpu tests/gpu

lint: $(STAMP) ## style, types, borders and prose
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy $(MEMBERS:%=%/src) deploy/grafana/generate.py deploy/grafana/boards --no-error-summary
	@PYTHONPATH= $(BIN)/lint-imports --no-cache > .lint-imports.log 2>&1 || { cat .lint-imports.log; exit 1; }
	@rm -f .lint-imports.log
	@$(BIN)/python tests/prose.py

format: $(STAMP) ## let the formatter write
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

soak: $(STAMP) ## thousands of simulated clusters, millions of scheduling decisions
	@PYTHONPATH=tests $(BIN)/python -m gangsim --seeds 10000
	@GANGLINE_SIMULATED_SEEDS=1000 $(PYTEST) -q -n auto --timeout 0 \
	  tests/simulation/test_snapshots.py tests/simulation/test_incremental.py tests/simulation/test_coverage.py
	@GANGLINE_UPGRADE_ORDERS=500 GANGLINE_UPGRADE_SEED=$$(date +%s) $(PYTEST) -q -n auto --timeout 0 \
	  tests/simulation/test_rolling_upgrade.py tests/simulation/test_older_agents.py
	@GANGLINE_EXTREMES=500 GANGLINE_EXTREMES_SEED=$$(date +%s) $(PYTEST) -q -n auto tests/extremes --timeout 0
	@$(PYTEST) -q -n auto --dist loadfile -m nightly --timeout 0 tests
	@GANGLINE_TEST_IMAGE=1 $(PYTEST) -q -n 0 --timeout 0 tests/integration/test_isolation_access.py \
	  tests/integration/test_isolation_processes.py tests/integration/test_isolation_gangs.py
	@GANGLINE_MLFLOW_KILLS=20 $(PYTEST) -q -n 0 --timeout 0 tests/integration/test_mlflow_jobs.py -k killed
	@GANGLINE_TEST_ARTIFACT_BYTES=20000000000 GANGLINE_TEST_PARAMETER_BYTES=2000000000 \
	  $(PYTEST) -q -n 0 --timeout 0 tests/integration/test_mlflow_artifacts.py \
	  tests/integration/test_mlflow_paths.py -k "(takes_no_memory and local) or any_size"
	@GANGLINE_ALL_LOOKS=1 $(PYTEST) -q -n 0 --timeout 0 tests/e2e/test_console_pages.py
	@GANGLINE_FILTER_TEXTS=500 $(PYTEST) -q -n 0 --timeout 0 tests/integration/test_tracker_runs.py
	@GANGLINE_ASK_PREFIXES=334 GANGLINE_STUDY_SEEDS=200 $(PYTEST) -q -n auto tests/properties/test_fold_and_ask.py tests/simulation/test_studies.py tests/simulation/test_study_world.py --timeout 0
	@GANGLINE_DRIFT_PAIRS=1000 GANGLINE_RACES=1000 GANGLINE_PIPELINE_SEEDS=400 GANGLINE_REPEATS=10000 $(PYTEST) -q -n auto \
	  tests/unit/registry tests/unit/pipelines/test_triggers.py tests/properties/test_drift.py tests/properties/test_pipelines.py --timeout 0
	@GANGLINE_VICTIM_STATES=5000 GANGLINE_AGENT_STORIES=5000 $(PYTEST) -q -n auto \
	  tests/properties/test_victims.py tests/properties/test_agent_core.py --timeout 0
	@GANGLINE_AGREEING_RANKS=1024 GANGLINE_FUZZ_FRAMES=10000 GANGLINE_SAVE_SEQUENCES=500 \
	  $(PYTEST) -q -n 0 --timeout 0 tests/unit/worker/test_checkpoint_incremental.py \
	  tests/unit/worker/test_training_control.py tests/unit/agent/runtime/test_rank_socket.py
	@GANGLINE_SOAK_DECISIONS=5000000 GANGLINE_FUZZ_RECORDS=10000 GANGLINE_SOAK_SEED=$$(date +%s) $(PYTEST) -q -n auto tests/stateful --timeout 0

fuzz: $(STAMP) ## 10,000 malformed requests and 1,000 slow connections to each server
	@GANGLINE_FUZZ_REQUESTS=14500 GANGLINE_FUZZ_SEED=$$(date +%s) GANGLINE_SLOW_CLIENTS=1000 \
	  $(PYTEST) -q -n 0 --timeout 0 tests/integration/test_fuzzed_requests.py tests/integration/test_slow_clients.py
	@GANGLINE_DOCUMENT_EXAMPLES=12 $(PYTEST) -q -n 0 --timeout 0 tests/integration/test_gateway_schemathesis.py

load: $(STAMP) ## a cluster of 10,000 simulated nodes: jobs, points, logs, viewers, and storms
	@PYTHONPATH=tests $(BIN)/python -m load --json build/load.json

upgrade: $(STAMP) ## this release with the one before (BEFORE=REVISION), part by part, under jobs
	@PYTHONPATH=tests $(BIN)/python -m upgrade --alone $(BEFORE:%=--before %)

chaos: $(STAMP) ## inject every fault into jobs that train; 100 kills and 100 cuts of one job; 100 kills of tracking, 100 during a study
	@PYTHONPATH=tests $(BIN)/python -m chaos
	@PYTHONPATH=tests $(BIN)/python -m chaos --kills 100
	@PYTHONPATH=tests $(BIN)/python -m chaos --cuts 100
	@PYTHONPATH=tests $(BIN)/python -m chaos --tracking 20
	@PYTHONPATH=tests $(BIN)/python -m chaos --study 100

bench: $(STAMP) ## measure, print a table and JSON
	@$(BIN)/python tests/bench/run.py

BENCH_SCHEDULER := cycle growth stuck reclaim queues replay
bench-scheduler: $(STAMP) ## measure the scheduler: cycles, growth, reclaim, many queues, two months
	@$(BIN)/python tests/bench/run.py --json build/bench-scheduler.json \
	  $(BENCH_SCHEDULER:%=--only scheduler_%) --only agents_restart

BENCH_WORKER := checkpoint incremental verify restart loader step_overhead tracking agreement \
  ettr
bench-worker: $(STAMP) ## measure saves, restores, restarts, the loader, runs with failures
	@$(BIN)/python tests/bench/run.py --json build/bench-worker.json $(BENCH_WORKER:%=--only %)

# FastTrackML is only compared with, so it is no part of requirements.lock.
FASTTRACKML := build/fasttrackml/bin/fml
$(FASTTRACKML): $(UV)
	@echo "setting up: FastTrackML, to compare with (75 MB)"
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) build/fasttrackml
	@VIRTUAL_ENV=build/fasttrackml $(UV) pip install --quiet --no-deps fasttrackml==0.6.0

BENCH_TRACKER := sustained mlflow compare dashboards storage tracking tracking_growth platform
bench-tracker: $(STAMP) ## measure tracking, beside the genuine MLflow server and FastTrackML
	@$(MAKE) --no-print-directory $(FASTTRACKML) || echo "no FastTrackML: its rows are left out"
	@$(BIN)/python tests/bench/run.py --json build/bench-tracker.json $(BENCH_TRACKER:%=--only %)

BENCH_CONSOLE := console compare_page
bench-console: $(STAMP) ## measure the console: its pages in Chromium, 200 viewers of live pages
	@$(BIN)/python tests/bench/run.py --json build/bench-console.json $(BENCH_CONSOLE:%=--only %)

screenshots: $(STAMP) ## take pictures of the console's pages for its guide
	@PYTHONPATH=tests $(BIN)/python tests/screenshots.py

clean: ## remove the virtual environments, caches and build results
	rm -rf .venv .uv .mypy_cache .ruff_cache .pytest_cache build
