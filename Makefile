# hookstats: `make help` lists the targets. They need Python, a C++20 compiler and pip alone.
#
# TORCHES  of `make matrix` and `make wheels`: the versions of torch
# PYTHON  the interpreter of a new .venv (python3), and of the environments of `make matrix`
# VENV    the environment to use: by default the active one if it has torch, else .venv
# CXX     the C++ compiler of the operators and of CTest (c++)
# JOBS    how many parts of a command, pytest workers and CTest programs run side by side (the cores)
# STEPS, MINUTES  how long `make soak` trains at most
# PHASE, CAPABILITY  of `make gpu-check`: one phase; for which GPU to build where there is none (9.0)
# BENCH, RESULTS  of `make bench`: a part of it (ops, hooks, steps, flush), and its JSON

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
ifndef SIDE_BY_SIDE  # set for the parts of a command; two installs into one .venv would clash
.NOTPARALLEL:
endif
.DEFAULT_GOAL := help

PYTHON ?= python3
HAS_TORCH := -c "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))"
ifdef VIRTUAL_ENV
  ACTIVE := $(shell "$(VIRTUAL_ENV)/bin/python" $(HAS_TORCH) && echo "$(VIRTUAL_ENV)")
endif
VENV ?= $(or $(ACTIVE),.venv)
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)

BIN := $(abspath $(VENV))/bin
STAMPS := $(VENV)/.hookstats
# What is imported is compiled then; compiling every file of torch first takes a minute of one core.
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --no-compile
# Where this is set, as in many containers, each process compiles again whatever it imports.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(BIN):$(PATH)

# Our own .venv gets the pinned versions; another environment keeps what it has.
PINS := $(if $(filter $(abspath .venv),$(abspath $(VENV))),constraints.txt,/dev/null)
LOGS := build/logs
CXX_FILES := $(shell find csrc tests/cpp tests/simt bench/cuda -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)
BUILD_FILES := setup.py pyproject.toml $(wildcard _build/*.py) $(filter csrc/%,$(CXX_FILES))
PRESETS := default races asan tsan races-whole asan-whole tsan-whole
WHOLE := races races-whole asan-whole tsan tsan-whole
# Three minutes of one core each.
CUDA_ARCHITECTURES = $(if $(filter full,$(MAKECMDGOALS)),8.0;9.0;10.0,9.0)
# Parts that fail soon come first, then those that take longest.
TEST_PARTS := lint pytest
CHECK_PARTS := docs pytest-check cuda-compile ctest-default ctest-asan bench-smoke
# The rooms whose slower tests check runs; full runs all of them.
CHECK_ROOMS := buffers insight kernels preflight records rules runs sinks stats cli/test_cli_run.py::test_a_plain_loop
# The output of a part comes in one piece, when the part ends; a make that cannot do this runs the
# parts one by one.
PARALLEL := $(if $(filter output-sync,$(.FEATURES)),--jobs=$(JOBS) --output-sync=target)

# The share of JOBS of a preset: beside other parts half and one more, as these leave cores idle.
CTEST_JOBS := $(if $(SIDE_BY_SIDE),$(shell echo $$(( ($(JOBS) + 2) / 2 ))),$(JOBS))

# Threads that wait for each other leave the cores to other processes.
WAITING := OMP_WAIT_POLICY=passive

# The last release of each minor version of torch that wheels serve.
TORCHES ?= 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0

STEPS ?= 100000
MINUTES ?= 30
BENCH ?=
RESULTS ?= build/bench.json
BENCHMARKS := $(BIN)/python -m pytest bench/$(BENCH)
WORKERS := $(JOBS)
PYTEST = $(WAITING) $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal

# run_parts(name,parts): builds and installs first, then runs the parts side by side: beside the
# install of what only some of them need, the others.
define run_parts
	@$(MAKE) --no-print-directory $(STAMPS)/test
	@$(MAKE) --no-print-directory SIDE_BY_SIDE=1 CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)" $(PARALLEL) $(2) \
	  || { echo "make $(1): failed; a line with *** follows the output of each failed part" >&2; exit 1; }
endef

.PHONY: help demo test check soak zoo faults clang full cuda-compile pytest pytest-check pytest-full build lint format docs readme-picture page-pictures clean
.PHONY: matrix wheel wheels bench bench-smoke bench-compare gpu-check $(PRESETS:%=ctest-%)

help:  ## List the targets
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: $(STAMPS)/demo  ## Train a small network with every layer watched, and report what was recorded
	$(BIN)/python -m hookstats demo

test: | $(LOGS)  ## Install, build, lint, quick tests: at most 5 minutes on 2 cores, from a fresh clone
	$(call run_parts,test,$(TEST_PARTS))
	@echo "pytest: $$(tail -n 1 $(LOGS)/pytest.log)" | tee $(LOGS)/test.txt

check: | $(LOGS)  ## Slower tests of some rooms, C++ tests, a sanitizer, nvcc, docs, small benchmarks: 12 minutes
	$(call run_parts,check,$(CHECK_PARTS))
	@{ for preset in default asan; do \
	  echo "ctest ($$preset): $$(grep 'tests passed' $(LOGS)/ctest-$$preset.log)"; done; \
	  grep '^hookstats: .*CUDA' $(LOGS)/cuda-compile.log; \
	  echo "small benchmarks: $$(tail -n 1 $(LOGS)/bench-smoke.log)"; \
	  echo "pytest, the rest: $$(tail -n 1 $(LOGS)/pytest-check.log)"; } | tee $(LOGS)/check.txt

pytest-full: $(STAMPS)/dev | $(LOGS)  ## All slower tests of all rooms, and more examples of Hypothesis
	HOOKSTATS_EXAMPLES=200 $(PYTEST) -m "check or slow or full" 2>&1 | tee $(LOGS)/pytest-full.log

soak: $(STAMPS)/test  ## Train STEPS (100000) steps for at most MINUTES (30), with faults, kills and restarts
	rm -rf build/soak
	PYTHONPATH=tests $(WAITING) $(BIN)/python -m support.soak $(STEPS) $(MINUTES) build/soak

zoo: $(STAMPS)/dev  ## Run small programs of all kinds with and without hookstats: same bits, no false alarm, whole coverage
	PYTHONPATH=tests $(WAITING) $(BIN)/python -m zoo

faults: $(STAMPS)/dev  ## Train all faults and sound programs of bench/faults, three seeds each, and print what rules say: 30 minutes
	$(WAITING) $(BIN)/python -m bench.faults --seeds 3

clang: $(STAMPS)/test | $(LOGS)  ## Build the operators and the hooks with clang++, if there is one
	@command -v clang++ >/dev/null || { echo "hookstats: not built with clang++ (there is none)"; exit 0; }; \
	CXX=clang++ HOOKSTATS_WERROR=1 $(BIN)/python setup.py build_ext --build-lib build/clang >$(LOGS)/clang.log 2>&1 \
	  || { cat $(LOGS)/clang.log; exit 1; }; \
	grep '^hookstats: built' $(LOGS)/clang.log

full: test check $(WHOLE:%=ctest-%) pytest-full faults bench clang  ## test, check, all that they sample, faults, bench: hours
	@cat $(LOGS)/test.txt $(LOGS)/check.txt

# Whether torch has CUDA or not; HOOKSTATS_WERROR=1 makes warnings errors.
cuda-compile: $(STAMPS)/dev  ## Compile and link the CUDA kernels, if nvcc is found; needs no GPU: 8 minutes in check
	@if PYTHONPATH=_build $(BIN)/python -c "import nvcc, sys; sys.exit(nvcc.find_nvcc() is None)"; then \
	  echo "hookstats: compiling the CUDA kernels"; \
	  FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST="$(CUDA_ARCHITECTURES)" \
	    $(BIN)/python setup.py build_ext --build-lib build/cuda >$(LOGS)/cuda-compile.log 2>&1 \
	    || { cat $(LOGS)/cuda-compile.log; exit 1; }; \
	else \
	  echo "hookstats: CUDA kernels: not compiled (no nvcc)" >$(LOGS)/cuda-compile.log; \
	fi
	@grep '^hookstats: .*CUDA' $(LOGS)/cuda-compile.log
	@if [ -d build/cuda ]; then \
	  $(BIN)/python -m bench.cuda.ptxas $$(ls -dt build/temp.*/nvcc | head -n 1)/kernels_{float32,float16,bfloat16}.cu.o; \
	fi

build: $(STAMPS)/dev  ## Build the operators and install the package, editable, with all tools
	@:

pytest: $(STAMPS)/test | $(LOGS)
	$(PYTEST) 2>&1 | tee $(LOGS)/pytest.log

# One more than there are cores: of these tests many wait for disks, ranks and other processes.
pytest-check: WORKERS := $(shell echo $$(( $(JOBS) + 1 )))
pytest-check: $(STAMPS)/dev | $(LOGS)
	$(PYTEST) -m "(check or slow) and not full" --durations=30 --durations-min=5 $(CHECK_ROOMS:%=tests/%) 2>&1 | tee $(LOGS)/pytest-check.log

# The plain presets link the kernels that setup.py compiled, those that users get; the others link of
# them what their sanitizers do not see.
OBJECTS = -DHOOKSTATS_OBJECTS="$$(ls -dt $(CURDIR)/build/temp.*/_C/csrc/cpu | head -n 1)"

# Both are built in one folder: races adds to what default has built.
ctest-races: ctest-default

# Without a number ninja would start as many compilers as there are cores, in every preset.
$(PRESETS:%=ctest-%): ctest-%: $(STAMPS)/test | $(LOGS)
	cmake --preset $* $(OBJECTS) >$(LOGS)/cmake-$*.log 2>&1 || { cat $(LOGS)/cmake-$*.log; exit 1; }
	cmake --build --preset $* --parallel $(CTEST_JOBS)
	ctest --preset $* --parallel $(CTEST_JOBS) 2>&1 | tee $(LOGS)/ctest-$*.log

lint: $(STAMPS)/test  ## Check style, types and imports: ruff, mypy, import-linter, clang-format
	ruff check
	ruff format --check
	mypy
	lint-imports --no-cache --no-logo
	clang-format --dry-run --Werror $(CXX_FILES)

format: $(STAMPS)/test  ## Format the Python and the C++
	ruff check --fix
	ruff format
	clang-format -i $(CXX_FILES)

docs: $(STAMPS)/dev  ## Build the documentation into build/docs, warnings as errors
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going -d build/doctrees docs build/docs
	@echo "docs: build/docs/index.html"

readme-picture: $(STAMPS)/dev  ## Train a run of bench/faults, and draw the README's picture into docs/figures
	$(WAITING) $(BIN)/python -W ignore -m bench.faults.picture docs/figures

page-pictures: $(STAMPS)/dev  ## Take the pictures of docs/page.md and docs/tutorial.md by Chromium
	$(WAITING) $(BIN)/python -W ignore -m bench.faults.screens docs/figures

bench: $(STAMPS)/bench  ## Benchmark beside other tools: up to 50 minutes; BENCH=ops|hooks|steps|flush for a part
	@mkdir -p $(dir $(RESULTS)); [ ! -f $(RESULTS) ] || cp $(RESULTS) $(RESULTS:.json=.before.json)
	$(BENCHMARKS) --benchmark-quiet --benchmark-json=$(RESULTS)
	$(BIN)/python -m bench.tables $(RESULTS)

bench-smoke: $(STAMPS)/dev | $(LOGS)  ## Run every benchmark on tiny tensors, for its assertions alone: 2 minutes
	$(WAITING) HOOKSTATS_BENCH_SMOKE=1 $(BENCHMARKS) -q --benchmark-quiet 2>&1 | tee $(LOGS)/bench-smoke.log

bench-compare:  ## Compare the last run of make bench with the one before
	$(BIN)/python -m pytest_benchmark compare $(RESULTS:.json=.before.json) $(RESULTS) --group-by=fullname --columns=min,median

gpu-check:  ## On a machine with a GPU, whole or PHASE=build|test|sanitize|bench|training|profile
	$(if $(ACTIVE),$(BIN)/python,$(PYTHON)) bench/cuda/check.py $(if $(PHASE),--phase $(PHASE)) \
	  $(if $(CAPABILITY),--capability $(CAPABILITY))

matrix:  ## Every torch of TORCHES="2.15.0 ...", each with a clone of its own in build/matrix: build, doctor, tests
	@for torch in $(TORCHES); do \
	  tree=build/matrix/$$torch; rm -rf $$tree; git clone -q . $$tree; \
	  $(PYTHON) -m venv $$tree/.venv; \
	  $$tree/.venv/bin/python -m pip --disable-pip-version-check install -q torch==$$torch; \
	  VIRTUAL_ENV= $(MAKE) --no-print-directory -C $$tree VENV=.venv build; \
	  $$tree/.venv/bin/hookstats doctor; \
	  VIRTUAL_ENV= $(MAKE) --no-print-directory -C $$tree VENV=.venv pytest; \
	done

wheels:  ## For each of PYTHONS="python3.11 ...": a wheel with the C++ hooks of every torch from 2.10 to 2.15
	@for python in $(or $(PYTHONS),$(PYTHON)); do \
	  venv=build/venvs/$$($$python -c 'import sys; print(sys.implementation.cache_tag)'); \
	  mkdir -p build/torches; \
	  headers=$$($$python _build/headers.py build/torches $(TORCHES)) || exit 1; \
	  WHEEL_HEADERS="$$headers" VIRTUAL_ENV= $(MAKE) --no-print-directory VENV=$$venv PYTHON=$$python wheel || exit 1; \
	done

wheel: $(STAMPS)/wheel | $(LOGS)  ## Build a manylinux wheel for this Python into dist/, for every torch >= 2.10
	rm -rf build/wheel build/lib* build/bdist*
	TORCH_CUDA_ARCH_LIST="$(or $(TORCH_CUDA_ARCH_LIST),8.0;9.0;10.0+PTX)" \
	  HOOKSTATS_HEADERS="$${WHEEL_HEADERS-}" \
	  $(BIN)/python -m pip --disable-pip-version-check wheel -v --no-build-isolation --no-deps \
	  --wheel-dir build/wheel . >$(LOGS)/wheel.log 2>&1 || { cat $(LOGS)/wheel.log; exit 1; }
	@sed -n 's/^ *\(hookstats: .*\)/\1/p' $(LOGS)/wheel.log
	$(BIN)/python -m auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' \
	  --wheel-dir dist build/wheel/*.whl >>$(LOGS)/wheel.log 2>&1 || { tail $(LOGS)/wheel.log; exit 1; }
	@ls dist/*.whl

clean:  ## Remove all build products; .venv stays
	rm -rf build dist *.egg-info hookstats/*.so $(STAMPS)
	rm -rf .benchmarks .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "hookstats: no $(PYTHON): install python3 and \
	python3-venv (Debian, Ubuntu), or set PYTHON to a Python >= 3.10" | tr -d '\t' >&2; exit 1; }
	@PYTHONPATH=_build $(PYTHON) -c "import toolchain as t; t.require_python(); t.require_compiler()"
	$(PYTHON) -m venv $(VENV)

# Torch is installed if it is missing; an existing one is kept and built against.
$(STAMPS)/torch: | $(BIN)/python
	@mkdir -p $(STAMPS)
	$(BIN)/python $(HAS_TORCH) || $(PIP) --constraint constraints.txt torch
	$(PIP) --constraint $(PINS) "setuptools>=77" "ninja>=1.10"
	touch $@

# The operators, in place. After a success only the lines are shown that say what was built, and why
# the rest was not.
$(STAMPS)/operators: $(BUILD_FILES) | $(STAMPS)/torch $(LOGS)
	$(BIN)/python setup.py build_ext --inplace >$(LOGS)/build.log 2>&1 || { cat $(LOGS)/build.log; exit 1; }
	@grep '^hookstats:' $(LOGS)/build.log
	touch $@

# The package, editable, with an extra: demo, test, dev, wheel or bench.
$(STAMPS)/demo $(STAMPS)/test $(STAMPS)/dev $(STAMPS)/wheel $(STAMPS)/bench: pyproject.toml constraints.txt | $(STAMPS)/operators
	grep -v '^torch==' $(PINS) >$(STAMPS)/pins || true
	$(BIN)/python -c "import importlib.metadata as m; print('torch==' + m.version('torch'))" >>$(STAMPS)/pins
	$(PIP) --constraint $(STAMPS)/pins --no-build-isolation --editable ".[$(@F)]"
	touch $@

$(LOGS):
	mkdir -p $@
