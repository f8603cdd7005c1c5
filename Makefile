# make demo | test | test-unit | bench* | venv | plugin | proto | install DESTDIR= | shell ; `make help` lists them.
PYTHON3 ?= python3
VENV := .venv
PY := $(VENV)/bin/python
SHELL := /bin/bash
.DEFAULT_GOAL := help

-include Makefile.d/*.mk

TEST_JOBS ?= 2

.PHONY: help venv test test-unit lint type proto
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

venv: $(VENV)/.up-to-date ## Make .venv with all that needs no Slurm
$(VENV)/.up-to-date: setup.py
	$(PYTHON3) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[test,simulate]'
	touch $@

test: lint type test-unit plugin-test test-cluster test-testbed ## All tests, unit and real-Slurm (needs root)

test-unit: venv ## Tests that need neither root nor Slurm
	$(PY) -m pytest -q -n $(TEST_JOBS) --dist loadfile tests/unit

lint: venv ## ruff
	$(PY) -m ruff check .

type: venv ## mypy --strict
	$(PY) -m mypy pyhetsched

proto: venv ## Regenerate pyhetsched/rpc/gen from proto/
	rm -rf build/proto && mkdir -p build/proto pyhetsched/rpc/gen
	$(PY) -m grpc_tools.protoc -I proto --python_out=build/proto --grpc_python_out=build/proto \
	    --plugin=protoc-gen-mypy=$(VENV)/bin/protoc-gen-mypy --mypy_out=quiet:build/proto proto/hetsched/v1/*.proto
	cp build/proto/hetsched/v1/*.py build/proto/hetsched/v1/*.pyi pyhetsched/rpc/gen/
	sed -i -E 's/^from hetsched\.v1 import/from pyhetsched.rpc.gen import/; s/^import hetsched\.v1\.([a-z_0-9]+)/import pyhetsched.rpc.gen.\1/; s/([^a-zA-Z_.])hetsched\.v1\.([a-z_]+_pb2)/\1pyhetsched.rpc.gen.\2/g' pyhetsched/rpc/gen/*.py pyhetsched/rpc/gen/*.pyi
	touch pyhetsched/rpc/gen/__init__.py
