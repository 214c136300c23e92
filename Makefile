# Everything here sets itself up: a machine needs Python >= 3.11 and make, nothing else.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
UV_VERSION := 0.13.9
UV := .tools/bin/uv
# The environment is this checkout's own, whatever the caller's shell has set or activated.
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/.venv
# The machine's own certificates where it has some: behind a proxy with its own authority the bundled ones do not do.
UV_SYSTEM_CERTS ?= $(if $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/ssl/cert.pem /etc/pki/tls/certs/ca-bundle.crt),1,0)
export UV_SYSTEM_CERTS
# So is what is compiled in it: each of the many processes that tests start would compile everything anew else.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
VENV := .venv/.ready
BIN := .venv/bin

.PHONY: help
help: ## Show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python >= 3.11 is needed; name one with: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv .tools \
	  || { rm -rf .tools; echo "Python's venv module is missing; on Debian: apt-get install python3-venv" >&2; exit 1; }
	.tools/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV): pyproject.toml | $(UV)
	$(UV) sync --quiet --all-extras --python "$$(.tools/bin/python -c 'import sys; print(sys._base_executable)')"
	@touch $@

.PHONY: setup
setup: $(VENV) ## Make .venv with everything in it

.PHONY: demo
demo: $(VENV) ## Ask two questions, then one again with a dependency that hangs
	$(BIN)/failsoft demo

.PHONY: test
test: $(VENV) ## Run the whole test-suite
	$(BIN)/python -m pytest -n 3 $(ARGS)

.PHONY: test-deep
test-deep: $(VENV) ## Run the kernel's properties and exhaustive searches at full depth, and what takes long
	TEST_DEEP=1 $(BIN)/python -m pytest -n 3 -p no:randomly --timeout 300 \
	  tests/kernel tests/properties tests/cancellation tests/composition $(ARGS)
	TEST_DEEP=1 $(BIN)/python -m pytest -n 3 -m deep --timeout 300 tests/drills tests/cli tests/tools tests/faults tests/models tests/examples $(ARGS)

.PHONY: drills
drills: $(VENV) ## Run every scenario of the proof and write docs/proof.md (under 20 minutes)
	$(BIN)/failsoft drill prove $(ARGS)

.PHONY: test-model
test-model: $(VENV) ## Fetch and build a real small model (ten minutes the first time), test the gateway before it
	@mkdir -p .models
	.tools/bin/python scripts/real_model.py > .models/paths.json
	REAL_MODEL_PATHS=.models/paths.json $(BIN)/python -m pytest tests/real_model $(ARGS)

CHECKS := check-format check-lint check-types check-layers check-docs check-pins
.PHONY: check $(CHECKS)
check: $(VENV) ## Format, lint, types, layers, documentation, pins: all of them, then fail if one did
	@$(MAKE) --no-print-directory --keep-going $(CHECKS)

check-format: $(VENV)
	$(BIN)/ruff format --check .

check-lint: $(VENV)
	$(BIN)/ruff check .

check-types: $(VENV)
	$(BIN)/mypy

check-layers: $(VENV)
	$(BIN)/lint-imports

check-docs: $(VENV)
	$(BIN)/python scripts/docs_parity.py

check-pins: $(VENV)
	$(BIN)/python scripts/lock.py --check

.PHONY: fix
fix: $(VENV) ## Format, mend what can be mended, write the generated reference pages
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python scripts/docs_parity.py --write

.PHONY: lock
lock: | $(UV) ## Take the newest releases that fit and pin them in pyproject.toml
	$(UV) run --no-project --python .tools/bin/python scripts/lock.py --uv $(UV)

.PHONY: clean
clean: ## Remove all that set-up and runs have made
	rm -rf .tools .venv uv.lock .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
