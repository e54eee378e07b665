# The verbs of development; CI uses the same ones. `make setup` is quick when there is nothing to do.
PY := .venv/bin/python
PODWIRE := .venv/bin/podwire
NODES ?= 3
# kubectl and Helm of `make setup`, after those of the machine.
export PATH := $(PATH):$(CURDIR)/.venv/bin

.PHONY: help bpf wasm setup fmt lint style types layers test unit thorough kernel uml e2e bench conformance image up down cni real

help: ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-11s %s\n", $$1, $$2}'

bpf: setup ## compile the BPF programs of src/bpf into the package
	@$(MAKE) -s -C src/bpf

wasm: setup ## compile the WebAssembly filters of src/wasm into the package
	@$(MAKE) -s -C src/wasm

setup: ## install what is missing: packages, virtual environment, kubectl, Helm
	@scripts/setup

fmt: setup ## format the sources
	@.venv/bin/ruff format -q src tests bench scripts
	@.venv/bin/ruff check -q --fix --select I src tests bench

lint: setup ## style, types, layers
	@$(MAKE) --no-print-directory -j3 style types layers

style:
	@.venv/bin/ruff check src tests bench
	@.venv/bin/ruff format --check -q src tests bench scripts

types:
	@.venv/bin/mypy

layers:
	@.venv/bin/lint-imports --no-cache

test: setup ## the gates of lint, and the whole suite: unit, kernel, thorough, uml, e2e
	@$(MAKE) --no-print-directory -j2 style layers
	@$(PY) scripts/suite.py unit types kernel thorough uml e2e

unit: setup ## pure tests, no root
	@$(PY) scripts/suite.py unit

thorough: setup ## the unit tests that take long: many random cases, whole control planes
	@$(PY) scripts/suite.py thorough

kernel: setup ## real packets in namespaces
	@$(PY) scripts/suite.py kernel

uml: setup ## what this kernel lacks, in user-mode Linux
	@$(PY) scripts/suite.py uml

e2e: setup ## a cluster and kubectl
	@$(PY) scripts/suite.py e2e

bench: setup ## every benchmark; writes docs/benchmarks.md
	@scripts/setup bench
	@$(PY) -m bench

conformance: setup ## Kubernetes' conformance specs: SIGS="apps node", or its own suite: E2E=/path/to/e2e.test
	@$(PY) -m tests.conformance $(SIGS) $(if $(E2E),--e2e $(E2E)) $(if $(GINKGO),--ginkgo $(GINKGO) --procs $(or $(PROCS),2))

image: setup ## the container image of both processors: dist/podwire.tar
	@$(PY) scripts/make_image.py

real: setup ## podwire on Kubernetes' own programs: KUBERNETES_BIN=/folder/of/programs
	@$(PY) -m tests.real

up: setup ## a local cluster with the example application
	@$(PODWIRE) up --nodes $(NODES) -f examples/shop --probe

down: setup ## take the local cluster away
	@$(PODWIRE) down
