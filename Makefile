# Everything a developer runs. `make test` and `make demo` set themselves up on a machine with
# Python 3.11 or later. What setting up prints goes to standard error.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
TRACES ?=

.DEFAULT_GOAL := help
.PHONY: help setup tools apt fmt lint types imports test e2e controlplane demo bench bench-scaling bench-tick bench-exporter docs proto dashboards chart check clean

help:  ## list the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("gpuscale needs Python 3.11 or later; this is " + sys.version.split()[0] + ": set PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)' >&2
	@$(PYTHON) -m venv $(VENV) >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1' >&2

# What the demo needs: the program itself.
$(VENV)/.program: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo 'setting up $(VENV) (once)' >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[controller]' >&2
	@touch $@

# What developing needs on top.
$(VENV)/.development: $(VENV)/.program
	@echo 'installing the development tools (once)' >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev >&2
	@touch $@

setup: $(VENV)/.development tools  ## the environment with all development tools

tools: $(VENV)/.development  ## helm into .tools (tests that need it skip without)
	@test -x .tools/helm || $(BIN)/python deploy/get_helm.py >&2 || echo 'helm could not be had: its tests will skip' >&2

apt:  ## Prometheus and Chromium, from the distribution (as root)
	@if [ "$(APT)" = 1 ]; then \
		{ command -v prometheus && command -v promtool && command -v chromium; } >/dev/null || { \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus chromium; } >&2; \
	fi

fmt: $(VENV)/.development  ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix-only --quiet .

lint: $(VENV)/.development  ## ruff: style and errors
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: $(VENV)/.development  ## mypy, strict
	@$(BIN)/mypy

imports: $(VENV)/.development  ## import-linter: the floors of the architecture
	@PYTHONPATH=. $(BIN)/lint-imports

test: apt setup  ## all tests; APT=1 installs Prometheus and Chromium first (else their tests skip)
	@$(BIN)/python -m pytest $(ARGS)

e2e: setup controlplane  ## only the tests with real processes, the real control plane among them
	@$(BIN)/python -m pytest tests/e2e $(ARGS)

controlplane: $(VENV)/.development  ## etcd, Kubernetes and KEDA from the Go module proxy, once; needs Go
	@$(BIN)/python -m tests.e2e.controlplane.build >&2 || echo 'no control plane: its tests will skip' >&2

demo: $(VENV)/.program  ## the whole loop without GPU or cluster; ARGS="--headless --duration 60 --format json"
	@$(BIN)/gpuscale demo $(ARGS)

bench: bench-exporter bench-tick bench-scaling  ## all benchmarks; TRACES=folder

bench-scaling: $(VENV)/.development  ## cost of gpuscale and its peers on TRACES=folder
	@$(BIN)/python benchmarks/scaling.py --traces $(or $(TRACES),$(error say TRACES=folder with the traces))

bench-tick: $(VENV)/.development  ## time and memory of a tick, 1,000 and 10,000 workloads on one core
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/tick.py

bench-exporter: $(VENV)/.development  ## cost of the exporter beside nvitop-exporter
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench >&2
	@$(BIN)/python benchmarks/exporter.py

docs: $(VENV)/.development  ## write the generated pages
	@$(BIN)/python docs/generate.py

proto: $(VENV)/.development  ## generate the wire formats again
	@$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. gpuscale/proto/externalscaler.proto gpuscale/proto/podresources.proto

dashboards: $(VENV)/.development  ## build the dashboards' JSON again
	@$(BIN)/python dashboards/build.py

chart: tools dashboards  ## copy alerts, dashboards and settings into the chart, render deploy/static again
	@$(BIN)/python deploy/build.py

check: lint types imports test  ## everything that must pass before a commit

clean:  ## remove what was built here
	rm -rf $(VENV) .tools .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist
