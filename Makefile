# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` set up everything they need; nothing has to be installed before.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
CACHE := .cache
VENV := $(CACHE)/venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.PHONY: venv
venv:
	@tools/setup $(VENV) requirements/controller.txt requirements/dev.txt

.PHONY: demo
demo: ## Boot two hosts on this machine and bring them from bare to serving
	@tools/demo up

.PHONY: demo-down
demo-down: ## Remove every trace of the demo
	@tools/demo down

.PHONY: check
check: venv ## Lint, types, unit, golden and contract tests: no hosts needed
	@tools/check

.PHONY: test
test: ## Everything CI runs, on real systemd hosts it boots and removes itself
	@tools/test

.PHONY: sanity
sanity: venv ## ansible-test sanity on the staged collection
	@python tools/stage_collection.py sanity

.PHONY: molecule
molecule: venv ## Molecule scenarios on real systemd hosts
	@lab/lab deps
	molecule test --all

.PHONY: bench-plan
bench-plan: venv ## Plan time and memory at 10 to 10,000 hosts of all kinds, one JSON line each
	@python tools/bench_plan.py

.PHONY: bench
bench: venv ## All the figures of docs/benchmarks.md
	@python tools/bench.py

.PHONY: docs
docs: venv ## Regenerate README variable blocks and docs/reference
	@python tools/docs.py
