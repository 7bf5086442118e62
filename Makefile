# Two commands do everything on a fresh machine: `make demo` and `make test`.
#
# PYTHON=python3.12 chooses the interpreter. TORCH="--index-url URL" chooses another build of torch, see the README.

PYTHON ?= python3
TORCH ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Some virtual machines announce AMX and crash with it (`vitrail doctor` checks), so the tests disable it.
# An environment may forbid bytecode files, without which every process of a test compiles the package again.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 $(BIN)/python -m pytest -n 2 --dist worksteal
# The run-time shape checker does not work with torch.compile, so tests that compile run without it.
UNCHECKED := --no-shape-checks

QUICK := not slow and not thorough

.PHONY: demo check test test-rest test-all docs format clean

demo: .venv/installed
	$(BIN)/vitrail train

check: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check  # the most telling tests of every feature, in a few minutes
	$(PYTEST) -m "not compile and $(QUICK)"
	$(PYTEST) $(UNCHECKED) -m "compile and $(QUICK)"

test-rest: .venv/installed-dev  # what CI runs after `make test`
	$(PYTEST) -m "thorough and not compile and not slow"
	$(PYTEST) $(UNCHECKED) -m "compile and thorough and not slow"

test-all: check  # everything, also what takes minutes each
	$(PYTEST) -m "not compile"
	$(PYTEST) $(UNCHECKED) -m "compile"

docs: .venv/installed-dev
	@$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs dist/docs
	@echo "docs: dist/docs/index.html"

format: .venv/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/made:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing; install it: sudo apt install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) cannot create virtual environments; install the missing package: sudo apt install $(notdir $(PYTHON))-venv"; exit 1; }
	@echo "creating .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@$(PIP) pip hatchling editables
	@touch $@

.venv/installed: .venv/made pyproject.toml constraints.txt
	@echo "installing torch and vitrail (a few minutes the first time)"
	@$(PIP) $(if $(TORCH),--no-deps $(TORCH)) torch
	@$(PIP) --no-build-isolation -e '.[studio]'
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "installing test dependencies"
	@$(PIP) --no-deps torchvision  # its metadata asks for a CUDA build
	@$(PIP) --group dev --group peers
	@touch $@
