# Every target makes the environment it needs: all that must be there is Python 3.11 or newer.
#
#   PYTHON=python3.12      the Python to make a new environment with
#   XFUNC_VENV=DIR         where the environment is or shall be, instead of .venv
#   PYTEST_ARGS='-k vmap'  further arguments for pytest

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.PHONY: help demo quick test sweep oldest test-oldest newest test-newest test-torch-xla test-extras coverage check bench docs site-test clean env key

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

# An environment with torch_xla, and the oldest releases of what xfunc needs.
OLDEST := $(abspath $(or $(XFUNC_OLDEST_VENV),build/oldest))

test-oldest: oldest ## run the tests with the oldest releases of what xfunc needs
	$(OLDEST)/bin/python -m tests $(PYTEST_SPREAD) $(PYTEST_ARGS)

test-torch-xla: oldest ## run the tests on the runtime of torch_xla
	$(OLDEST)/bin/python -m tests $(PYTEST_SPREAD) --backend torch_xla $(PYTEST_ARGS)

oldest:
	@$(find_python)
	mkdir -p build
	"$$python" -c '
	import pathlib, tomllib
	needed = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]["dependencies"]
	print(*(need.partition(",")[0].replace(">=", "==") for need in needed), sep="\n")
	' > build/oldest.txt
	$(MAKE) --no-print-directory env VENV=$(OLDEST) PINNED=1 WANTED="--editable .[dev,torch-xla] --requirement build/oldest.txt"

# The newest releases, with the newest Python of `find_python`: each run looks whether there are newer.
NEWEST := $(abspath $(or $(XFUNC_NEWEST_VENV),build/newest))

test-newest: newest ## run the quick tests with the newest releases of what xfunc needs
	$(NEWEST)/bin/python -m tests $(PYTEST_SPREAD) --tier quick $(PYTEST_ARGS)

newest:
	@rm -f $(NEWEST)/.xfunc-made-*
	$(MAKE) --no-print-directory env VENV=$(NEWEST) PINNED=1 WANTED="--upgrade --upgrade-strategy eager --editable .[dev]"

# Half a GB that few tests need, in an environment on top of the other.
EXTRAS := $(abspath build/extras)

test-extras: env ## run the tests of the Llama example with trl
	python=$(BIN)/python
	$(find_key)
	if [ ! -e $(EXTRAS)/.made-$$key ]; then
		rm -rf $(EXTRAS)
		"$$python" -m venv $(EXTRAS)
		"$$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
			> "$$($(EXTRAS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/env.pth"
		$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check \
			--editable . trl==1.16.0
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
	rm -rf build/site build/doctrees  # what Sphinx does not see change: the navigation, pages of sources
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs -d build/doctrees . build/site

site-test: docs ## build the site and look at it in Chromium: nothing cut off, searches that find
	$(BIN)/python -m pytest tests/docs/in_browser.py $(PYTEST_ARGS)

clean: ## remove what was built or cached, but not the environment
	rm -rf build dist htmlcov .coverage .pytest_cache .ruff_cache
	find xfunc transforms sharding tests examples benchmarks -name __pycache__ -prune -exec rm -r {} +

WANTED := --editable .[dev]

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
		echo "Installing xfunc and what it needs: this takes a while."
		rm -f $(VENV)/.xfunc-made-*
		pip="$(BIN)/python -m pip --disable-pip-version-check"
		# A torch that lies on this machine, perhaps a build for CPUs: those on the index are for GPUs.
		if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [ -z "$(PINNED)" ] && ! $(BIN)/python -c 'import torch' 2>/dev/null; then
			$$pip install --quiet --no-index --no-deps 'torch>=2.9' 2>/dev/null || true
		fi
		$$pip install $(WANTED)
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
supported='import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))'
for python in $(or $(PYTHON),python3.14 python3.13 python3.12 python3.11 python3 python); do
	if "$$python" -c "$$supported" 2>/dev/null; then break; fi
	python=
done
if [ -z "$$python" ]; then
	echo "xfunc needs Python 3.11 or newer with its venv module, and found none. Install one" >&2
	echo "(Debian, Ubuntu: apt install python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2
	exit 1
fi
endef

# Set `key` to a hash of what an environment is made from: how xfunc is built and what it requires.
define find_key
key=$$("$$python" -c '
import hashlib, json, pathlib, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())
made_from = json.dumps([project["build-system"], project["project"], "$(WANTED)"])
print(hashlib.sha256(made_from.encode()).hexdigest()[:16])
')
endef
