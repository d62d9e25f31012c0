# make demo | test | build | lint | format | wheel | wheel-check | gpu-test | clean
#
# Everything is installed into .venv, on first need and again when pyproject.toml or TORCH changes.
# NO_VENV=1 uses $(PYTHON) as it is instead: a machine that has torch and the tools, or has no network.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# The torch to install: a version, or what pip takes ("torch==2.13.0 --index-url ...").
TORCH ?= 2.13.0
GNNAGG_CUDA ?= AUTO
BUILD_DIR ?= build/dev
PYTEST_ARGS ?= -q
DEMO_ARGS ?= --compare-pyg

# make wheel: every GPU generation since Ampere, PTX for later ones.
WHEEL_ARCHS ?= 8.0;8.6;8.9;9.0;10.0;12.0+PTX
# make wheel-check: the two releases of torch that the wheel is tried with.
TORCH_A ?= 2.13.0
TORCH_B ?= 2.14.1

# "2.13.0" -> "torch==2.13.0"; anything else is passed to pip as it is.
torch_requirement = $(if $(filter 0 1 2 3 4 5 6 7 8 9,$(firstword $(subst ., ,$(1)))),torch==$(1),$(1))

ifdef NO_VENV
PY := $(PYTHON)
READY :=
export PATH := $(shell $(PYTHON) -c 'import os, sys; print(os.path.dirname(sys.executable))'):$(PATH)
else
VENV := .venv
PY := $(VENV)/bin/python
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
READY := $(VENV)/.ready-$(shell printf %s '$(TORCH)' | tr -c 'A-Za-z0-9.' '_')
endif

space := $() $()
export NINJA_STATUS := [%f/%t, %e s]$(space)

.PHONY: setup build test demo lint format wheel wheel-check gpu-test clean

setup: $(READY) ; @:

$(VENV)/.ready-%: pyproject.toml
	@echo "== setting up $(VENV) with $(call torch_requirement,$(TORCH))"
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q $(call torch_requirement,$(TORCH))
	$(PY) -m pip install -q --editable '.[dev]' \
	  --config-settings=wheel.cmake=false --config-settings=editable.mode=inplace
	@rm -f $(VENV)/.ready-*
	@touch $@

build: $(READY)
	cmake -S . -B $(BUILD_DIR) -G Ninja -DGNNAGG_INPLACE=ON -DGNNAGG_CUDA=$(GNNAGG_CUDA) \
	  -DPython3_EXECUTABLE="$$($(PY) -c 'import sys; print(sys.executable)')"
	cmake --build $(BUILD_DIR)

test: build
	$(PY) -m pytest $(PYTEST_ARGS)

demo: build
	$(PY) -m gnnagg train $(DEMO_ARGS)

lint: $(READY)
	git ls-files --cached --others --exclude-standard -z | xargs -0 $(PY) -m pre_commit run --files

format: $(READY)
	ruff check --fix --exit-zero --quiet .
	ruff format .
	clang-format -i $$(git ls-files --cached --others --exclude-standard 'csrc/*' '*.cu')

wheel: $(READY)
	rm -f dist/gnnagg-*.whl
	TORCH_CUDA_ARCH_LIST='$(WHEEL_ARCHS)' GNNAGG_CUDA=$(GNNAGG_CUDA) $(PY) -m pip wheel . -v --no-deps \
	  --no-build-isolation --wheel-dir dist --config-settings=build-dir=build/wheel
	@ls -l dist/gnnagg-*.whl

wheel-check:
	test -e dist/gnnagg-*.whl || $(MAKE) wheel
	$(foreach version,$(TORCH_A) $(TORCH_B),tools/wheel_check.sh '$(PYTHON)' '$(call torch_requirement,$(version))' dist/gnnagg-*.whl &&) true

gpu-test:
	$(MAKE) build NO_VENV=1 PYTHON=$(PYTHON) GNNAGG_CUDA=ON
	$(PYTHON) -m tools.record_gpu_tests $(PYTEST_ARGS)

clean:
	rm -rf build dist gnnagg/_C_cpu.so gnnagg/_C_cuda.so gnnagg/_build_info.json
	find gnnagg tests benchmarks tools -name __pycache__ -prune -exec rm -rf {} +
