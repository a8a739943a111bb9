# make train   install, then train a tiny agent on real TextWorld games, or go on with an interrupted run
# make alfworld install what the ALFWorld environment needs; builds its simulator from source the first time
# make test    install, then run the default test suite
# make java    install what scienceworld and textworld_express need besides a Java runtime; make test-java tests them
# make reasoning-gym install what the adapter of reasoning-gym needs
# make test-sglang  install SGLang in a folder of its own (3.4 GB), then run the tests that ask a real server
# make lora    install what training of adapters needs
# make lint    formatting, types, layering and the wire contract
# make proto   regenerate longturn/v1 from proto/
# make bench   run the benchmarks and write benchmarks/results/DATE-WHAT-MACHINE; MACHINE=NAME names this one
# make clean   remove the environment, caches and build leftovers; runs/ stays
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install alfworld java reasoning-gym lora train test test-slow test-java sglang-env test-sglang lint format proto bench clean

# One thread per process: the daemons are the parallelism.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

VENV ?= .venv
SGLANG_ENV ?= .venv-sglang
BIN := $(VENV)/bin
SUPPORTED := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))
PYTHON ?= $(shell for name in python3.11 python3.12 python3 python; do \
	$$name -c '$(SUPPORTED)' 2>/dev/null && echo $$name && break; done)
RUN ?= quickstart
CONFIG ?= configs/quickstart.toml
TRAIN_FLAGS ?=
PYTEST_FLAGS ?=
MACHINE ?= $(shell uname -m)-$(shell nproc)core
# Wheels built from source are kept for every checkout of this machine.
WHEELS ?= $(HOME)/.cache/longturn/wheels
DOWNWARD := $(shell sed -n 's/^fast-downward-textworld==//p' constraints/tested.txt)
RESULT = benchmarks/results/$(shell date +%F)
# Processes of the default suite: auto is one per core, 0 runs the tests one by one. A module stays in one process.
TEST_WORKERS ?= auto
MARKS := not slow and not gpu and not sglang and not java

help:
	@sed -n 's/^# make/make/p' Makefile

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints/tested.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or 3.12 with venv found: install one (and python3-venv), or run make PYTHON=/path/to/python"; exit 2; }
	@command -v cc >/dev/null || { echo "no C compiler found (the interpreter of the games is built from source): install gcc and make"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV); the first time takes some minutes"
	@$(BIN)/python -m pip install --quiet --constraint constraints/tested.txt --editable '.[all,dev]' \
	  && echo "installed in $$SECONDS s"
	@touch $@

alfworld: install $(VENV)/.alfworld

# The package's build calls the command `python`, so the environment's own comes first.
$(VENV)/.alfworld: $(VENV)/.installed
	@command -v cmake >/dev/null && command -v g++ >/dev/null \
	  || { echo "no cmake or no g++ found (the simulator of ALFWorld is built from source): install cmake, g++ and make"; exit 2; }
	@ls $(WHEELS)/fast_downward_textworld-$(DOWNWARD)-*.whl >/dev/null 2>&1 \
	  || { echo "building the simulator of ALFWorld into $(WHEELS), this once: some minutes"; \
	    PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEELS) fast-downward-textworld==$(DOWNWARD); }
	@$(BIN)/python -m pip install --quiet --find-links $(WHEELS) --constraint constraints/tested.txt --editable '.[server-alfworld]'
	@touch $@

java: install $(VENV)/.java

$(VENV)/.java: $(VENV)/.installed
	@command -v java >/dev/null || [ -n "$$JAVA_HOME" ] || { echo "no Java runtime found: apt-get install openjdk-17-jre-headless"; exit 2; }
	@$(BIN)/python -m pip install --quiet --constraint constraints/tested.txt \
	  --editable '.[server-scienceworld,server-textworld-express]'
	@touch $@

reasoning-gym: install $(VENV)/.reasoning-gym

$(VENV)/.reasoning-gym: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --constraint constraints/tested.txt --editable '.[server-reasoning-gym]'
	@touch $@

lora: install
	@$(BIN)/python -m pip install --quiet --constraint constraints/tested.txt --editable '.[lora]'

train: install
	if [ -e runs/$(RUN)/config.toml ]; then $(BIN)/longturn train --resume runs/$(RUN); \
	else $(BIN)/longturn train --config $(CONFIG) --run $(RUN) $(TRAIN_FLAGS); fi

test: install
	$(BIN)/python -m pytest -m "$(MARKS)" -n $(TEST_WORKERS) --dist loadscope $(PYTEST_FLAGS)

test-slow: install
	$(BIN)/python -m pytest -m "slow and not sglang and not java" $(PYTEST_FLAGS)

sglang-env: $(SGLANG_ENV)/.installed

# The .pth file gives every interpreter of the folder, spawned children too, what a CPU needs in place of CUDA packages.
CPU_STUBS := tests/support/longturn_sglang_cpu.py
$(SGLANG_ENV)/.installed: constraints/sglang.txt $(CPU_STUBS)
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or 3.12 with venv found: install one, or run make PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(SGLANG_ENV)
	@echo "installing SGLang into $(SGLANG_ENV), 3.4 GB; the first time takes some minutes"
	@$(SGLANG_ENV)/bin/python -m pip install --quiet --no-deps --requirement constraints/sglang.txt
	@site=$$($(SGLANG_ENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  cp $(CPU_STUBS) "$$site" && echo 'import longturn_sglang_cpu' > "$$site/longturn_sglang_cpu.pth"
	$(SGLANG_ENV)/bin/python -c 'import sglang; print("SGLang", sglang.__version__)'
	@touch $@

test-sglang: install sglang-env
	LONGTURN_SGLANG_ENV=$(abspath $(SGLANG_ENV)) $(BIN)/python -m pytest -m "sglang and not slow" $(PYTEST_FLAGS)

test-java: java
	$(BIN)/python -m pytest -m "java" $(PYTEST_FLAGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/buf lint proto
	$(BIN)/buf format --diff --exit-code proto
	$(BIN)/python -m pytest tests/test_contract.py

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write proto

proto: install
	PYTHON=$(BIN)/python bash proto/generate.sh

bench: install
	$(BIN)/python benchmarks/bench_engine.py --output $(RESULT)-engine-$(MACHINE).md
	$(BIN)/python benchmarks/bench_env_rpc.py --output $(RESULT)-env-rpc-$(MACHINE).md
	$(BIN)/python benchmarks/bench_envs.py --output $(RESULT)-envs-$(MACHINE).md
	$(BIN)/python benchmarks/bench_learner.py --output $(RESULT)-learner-head-$(MACHINE).json

clean:
	rm -rf $(VENV) $(SGLANG_ENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
