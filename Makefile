SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BREAKING_AGAINST ?= HEAD~1
VENV := .venv
BIN := $(VENV)/bin
CODE := paceline gateway draft_service verify_service tests tools bench

.PHONY: help install demo test test-helm lint types protos bars format clean

help: ## List the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

install: $(VENV)/.installed-dev ## Create .venv with everything that development and tests need

demo: $(VENV)/.installed-demo ## Run the line on a real model and compare drafting off and on
	@$(BIN)/python -m bench.demo

test: lint types ## Everything CI runs
	@echo "==> tests"
	@$(BIN)/python -m tools.helm_tools
	@$(BIN)/python -m pytest --ignore=tests/helm
	@$(MAKE) test-helm

test-helm: install ## Charts, images, dashboards and alert rules under real validators
	@$(BIN)/python -m tools.helm_tools
	@echo "==> charts, images and alert rules"
	@$(BIN)/python -m pytest tests/helm

lint: install ## Style, import contracts, protos, generated stubs, spelling, house rules
	@echo "==> ruff check"
	@$(BIN)/ruff check .
	@echo "==> ruff format"
	@$(BIN)/ruff format --check .
	@echo "==> import contracts"
	@$(BIN)/lint-imports --no-logo
	@echo "==> protos"
	@$(BIN)/buf lint protos
	@$(BIN)/python -m tools.check_breaking $(BREAKING_AGAINST)
	@$(BIN)/python -m tools.generate_stubs --check
	@echo "==> spelling"
	@$(BIN)/codespell
	@echo "==> house rules"
	@$(BIN)/python -m tools.house_rules

types: install ## mypy --strict over product and tests
	@echo "==> types"
	@$(BIN)/mypy $(CODE)

protos: install ## Generate the stubs in paceline/v1 anew
	@$(BIN)/python -m tools.generate_stubs

bars: $(VENV)/.installed-demo ## Measure the figures that the project promises
	@$(BIN)/python -m bench.bars

format: install ## Format the code and mend what can be mended
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

clean: ## Remove the environment and everything built
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 1; }
	@echo "==> creating $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "make: Python lacks venv (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }

$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "==> installing the extra $* (a few minutes the first time)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@
