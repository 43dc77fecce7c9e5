# Every target makes the environment it needs: all that must be there is Python 3.11, 3.12 or 3.13.
#
#   PYTHON=python3.12      the Python to make a new environment with
#   XFUNC_VENV=DIR         where the environment is or shall be, instead of .venv
#   PYTEST_ARGS='-k vmap'  further arguments for pytest

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.PHONY: help demo quick test sweep test-pjrt test-own newest-jax test-newest-jax newest-libtpu test-newest-libtpu test-extras coverage check bench docs clean env key

VENV := $(abspath $(or $(XFUNC_VENV),.venv))
BIN := $(VENV)/bin
# An environment may serve several checkouts: what runs is the code of this one.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

# One file after the other, and what is left of the last ones to whoever is idle.
PYTEST_SPREAD := -n 2 --dist worksteal

help: ## say what the targets are
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 14

demo: env ## run the Llama example
	$(BIN)/python -m examples.llama.demo

quick: env ## run the quick tests: at most 3 minutes
	$(BIN)/python -m tests $(PYTEST_SPREAD) --tier quick $(PYTEST_ARGS)

test: env ## run the tests: 15 minutes on two cores
	$(BIN)/python -m tests $(PYTEST_SPREAD) $(PYTEST_ARGS)

sweep: env ## run everything, for hours: SWEEP_ARGS=--help says which parts there are
	$(BIN)/python -m tests.sweep $(SWEEP_ARGS)

test-pjrt: env ## run the tests with the backend pjrt
	$(BIN)/python -m tests $(PYTEST_SPREAD) --backend pjrt $(PYTEST_ARGS)

test-own: env ## run the tests with the tracer of our own
	$(BIN)/python -m tests $(PYTEST_SPREAD) --tracer own --backend pjrt $(PYTEST_ARGS)

# jax 0.10.2 is the last release for Python 3.11. A folder that comes first on the path replaces the
# environment's jax; what else jax needs is there.
NEWEST_JAX := $(abspath build/newest-jax)

newest-jax: env ## install the newest jax that the Python has in the folder build
	if [ ! -e $(NEWEST_JAX)/.complete ]; then
		rm -rf $(NEWEST_JAX)
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(NEWEST_JAX) \
			--upgrade jax jaxlib ml_dtypes opt_einsum
		touch $(NEWEST_JAX)/.complete
	fi

test-newest-jax: newest-jax ## run the tests of the backend pjrt with it
	export PYTHONPATH=$$PYTHONPATH:$(NEWEST_JAX)
	$(BIN)/python -c 'import jax; print("jax", jax.__version__)'
	$(BIN)/python -m tests $(PYTEST_SPREAD) --backend pjrt $(NEWEST_JAX_TESTS) $(PYTEST_ARGS)

NEWEST_JAX_TESTS := $(wildcard tests/backends/test_pjrt*.py) $(patsubst %,tests/internals/backends/test_%.py,array callbacks client ending launchers meeting stored) tests/backends/test_launchers.py tests/backends/test_switching.py \
	tests/backends/test_threads.py tests/compile/test_call_jax.py tests/internals/program/test_foreign.py tests/sharding/test_backends.py \
	tests/processes/test_distributed.py tests/processes/test_distributed_ending.py tests/export/test_serve.py

# In an environment of its own, which xfunc.aot makes: 1 GB.
NEWEST_LIBTPU := $(abspath build/newest-libtpu)

newest-libtpu: env ## install the newest libtpu that the Python has in the folder build
	if [ ! -e $(NEWEST_LIBTPU)/.complete ]; then
		rm -rf $(NEWEST_LIBTPU)
		XFUNC_CACHE_DIR=$(dir $(NEWEST_LIBTPU)) $(BIN)/python -m xfunc.aot
		touch $(NEWEST_LIBTPU)/.complete
	fi

test-newest-libtpu: newest-libtpu ## compile for absent TPUs with it
	export XFUNC_TPU_COMPILER=$(NEWEST_LIBTPU)/bin/python
	$(BIN)/python -m tests tests/aot tests/internals/aot/test_compiled.py $(PYTEST_ARGS)

# Half a GB that few tests need, in an environment on top of the other.
EXTRAS := $(abspath build/extras)

test-extras: env ## run the tests of the Llama example with lm-eval, wandb, mlflow and schedulefree
	python=$(BIN)/python
	$(find_key)
	if [ ! -e $(EXTRAS)/.made-$$key ]; then
		rm -rf $(EXTRAS)
		"$$python" -m venv $(EXTRAS)
		"$$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
			> "$$($(EXTRAS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/env.pth"
		$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check \
			--editable '.[harness,trackers]' schedulefree==1.4.1
		touch $(EXTRAS)/.made-$$key
	fi
	$(EXTRAS)/bin/python -m pytest tests/llama/extras $(PYTEST_ARGS)

coverage: env ## run the tests and say which lines they leave out
	rm -f .coverage .coverage.*
	$(BIN)/python -m tests $(PYTEST_SPREAD) --cov --cov-append --cov-report= --cov-fail-under=0 $(PYTEST_ARGS) || status=$$?
	$(BIN)/python -m coverage report
	exit $${status:-0}

check: env ## check style, the order of the folders, and types
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pyright --pythonpath $(BIN)/python

bench: env ## time tracing, dispatch and scan
	$(BIN)/python -m benchmarks trace dispatch scan

docs: env ## build the site in build/site from README.md and docs/, and run its notebooks
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs -d build/doctrees . build/site

clean: ## remove what was built or cached, but not the environment
	rm -rf build dist htmlcov .coverage .pytest_cache .ruff_cache
	find xfunc transforms sharding tests examples benchmarks -name __pycache__ -prune -exec rm -r {} +

# Make the environment if it is missing, half made, or not what pyproject.toml asks for now. The
# stamp is written last. An environment that was made otherwise is added to, and never removed.
env:
	@if [ -e $(VENV)/.xfunc-unfinished ]; then
		echo "Removing $(VENV): it was left half made."
		rm -rf $(VENV)
	elif [ -e $(VENV)/pyvenv.cfg ] && ! $(BIN)/python -c '' 2>/dev/null; then
		echo "Removing $(VENV): the Python that it was made with is gone."
		rm -rf $(VENV)
	elif [ -d $(VENV) ] && [ ! -e $(VENV)/pyvenv.cfg ] && [ -n "$$(ls -A $(VENV))" ]; then
		echo "$(VENV) is in use, and not by a Python environment: set XFUNC_VENV to another." >&2
		exit 1
	fi
	python=$(BIN)/python
	if [ ! -e $(VENV)/pyvenv.cfg ]; then
		$(find_python)
		echo "Making an environment in $(VENV) with $$("$$python" --version)."
		mkdir -p $(VENV)
		touch $(VENV)/.xfunc-unfinished
		"$$python" -m venv $(VENV)
	fi
	$(find_key)
	stamp=$(VENV)/.xfunc-made-$$key
	if [ ! -e "$$stamp" ]; then
		echo "Installing xfunc and what it needs, of which torch alone is several GB: this takes a while."
		rm -f $(VENV)/.xfunc-made-*
		$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]'
		touch "$$stamp"
		rm -f $(VENV)/.xfunc-unfinished
		echo "The environment in $(VENV) is ready."
	fi

# The name that .ci/run keeps an environment under.
key:
	@$(find_python)
	$(find_key)
	echo "$$key"

# Set `python` to the first Python of a supported version that can make an environment.
define find_python
supported='import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python); do
	if "$$python" -c "$$supported" 2>/dev/null; then break; fi
	python=
done
if [ -z "$$python" ]; then
	echo "xfunc needs Python 3.11, 3.12 or 3.13 with its venv module, and found none. Install one" >&2
	echo "(Debian, Ubuntu: apt install python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2
	exit 1
fi
endef

# Set `key` to a hash of what an environment is made from: how xfunc is built and what it requires.
define find_key
key=$$("$$python" -c '
import hashlib, json, pathlib, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())
made_from = json.dumps([project["build-system"], project["project"]])
print(hashlib.sha256(made_from.encode()).hexdigest()[:16])
')
endef
