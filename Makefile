# Everything needs only Python 3.11 or newer; the rest goes into .venv.
PYTHON ?= $(firstword $(foreach p,python3.11 python3 python3.12 python3.13,$(shell $(p) -c 'import sys, venv; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
# uv where it is installed, pip where not; both take the versions of requirements.lock.
PIP = $(if $(shell command -v uv),uv pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --disable-pip-version-check)
# what an extra of pyproject.toml names
NAMED = $(BIN)/python -c 'import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]])'
CHECKED := src tests scripts benchmarks notebooks docs/site train.py
PYTEST = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal --durations 5
JOBS ?= logical
EXTRAS := agent gguf lmeval mcp published reasoning_gym tau2 verifiers
ARGS ?=

# One core a process: the tests run side by side, and a tiny model gains nothing from more.
test test-fast test-extras properties: export OMP_NUM_THREADS ?= 1
# Tests start hundreds of programs. Each would compile the package anew if Python could not keep what it compiled.
test test-fast test-extras properties: export PYTHONDONTWRITEBYTECODE :=
export PIP_NO_INPUT := 1
export WANDB_MODE ?= offline

.DEFAULT_GOAL := help
.PHONY: help setup train results sandbox compiler escapes test test-fast test-extras golden properties mutants lint format types imports check bfcl $(EXTRAS) alfworld test-alfworld test-vllm test-slurm gpu tiny smollm2 real docs audit cluster-check clean

help: ## what can be made
	@grep -hE '^[a-z0-9_-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(VENV)/.run ## .venv with what a run needs (at once when nothing changed)

train: setup ## the main job: PivotRL on the shipped policy; ARGS="method=sft seed=1" changes it
	$(BIN)/python train.py method=pivotrl $(ARGS)

sandbox: $(VENV)/.run ## bubblewrap, in which environments run what a model writes; root installs it where there is apt-get
	@command -v bwrap > /dev/null || if test "$$(id -u)" = 0 && command -v apt-get > /dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bubblewrap > /dev/null; fi
	@$(BIN)/python -m turnwise_worlds.sandbox.sandbox

compiler: | $(BIN)/python # what builds pycosat, which has no wheel; root installs it where there is apt-get
	@{ command -v cc && ls "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"; } > /dev/null 2>&1 \
		|| if test "$$(id -u)" = 0 && command -v apt-get > /dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq gcc libc6-dev python3-dev > /dev/null; fi

escapes: $(VENV)/.run ## try the ways out of the sandbox, as root and as an ordinary user (minutes)
	$(BIN)/python -m tests.security.escapes $(ARGS)

test: $(VENV)/.dev $(VENV)/.bfcl lint types imports ## set up, lint, types, import contracts, then every test, the fast ones first
	@$(MAKE) --no-print-directory sandbox || echo "make test: no sandbox works here, so the tests that need one will be skipped" >&2
	$(PYTEST) -m "not slow and not gpu and not alfworld"
	$(PYTEST) -m "slow and not gpu and not alfworld and not slurm" || test $$? -eq 5
	@$(BIN)/python -m turnwise_worlds.sandbox.sandbox || echo "make test: THE TESTS OF THE SANDBOX WERE NOT RUN" >&2

test-fast: $(VENV)/.dev ## the tests that take seconds; ARGS="tests/unit/losses" picks
	$(PYTEST) -m "not slow and not gpu and not alfworld" $(ARGS)

# The variable makes a missing package a failure. Only files that hold the mark are read: reading all of them takes half a minute.
test-extras: $(VENV)/.dev $(EXTRAS) ## install the extras that fit beside a run's libraries, then run the tests that need one
	TURNWISE_REQUIRE_EXTRAS=1 $(PYTEST) -m "extra and not gpu" $$(grep -rlF --include='test_*.py' 'mark.extra(' tests) $(ARGS)

golden: $(VENV)/.dev ## twelve tiny runs against the metrics and weights recorded in tests/golden.json (minutes); ARGS="--exact" allows no difference
	$(BIN)/python tests/golden.py --check $(ARGS)

properties: $(VENV)/.dev ## the property tests on examples that no run has seen (minutes); a find becomes an @example
	$(PYTEST) -m "hypothesis and not gpu and not alfworld" --hypothesis-profile search $(ARGS)

mutants: $(VENV)/.dev ## faulty edits, one at a time, and which test finds each (minutes); ARGS="kl_sign" picks
	$(BIN)/python -m tests.mutants $(ARGS)

lint: $(VENV)/.dev ## style, without changing a file
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

format: $(VENV)/.dev ## style, put right
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

types: $(VENV)/.dev ## static types
	$(BIN)/mypy

imports: $(VENV)/.dev ## imports point down only (pyproject.toml, [tool.importlinter])
	$(BIN)/lint-imports --no-logo

check: lint types imports test-fast ## what to run before a commit

alfworld: .venv-alfworld/.done ## the real ALFWorld engine in an environment of its own (needs a C++ compiler)

bfcl: $(VENV)/.bfcl ## what env=bfcl needs, without the pins that it would bring

tau2: $(VENV)/.tau2 ## what env=tau2 needs, without what it would bring

$(EXTRAS): %: $(VENV)/.%

lock: ## requirements.lock anew, with uv (PYTHON_FROM=3.11.5 is the oldest Python that it is for)
	{ cat requirements.txt; for extra in dev docs; do $(NAMED) $$extra | tr ' ' '\n'; done; } > build.in
	sed -n '/^# Extras that are/,$$p' requirements.lock > build.tail
	sed -n '1,2p' requirements.lock > build.head
	uv pip compile build.in -c requirements.lock --universal --python-version $${PYTHON_FROM:-3.11.5} --no-header --no-annotate -q -o build.lock
	cat build.head build.lock build.tail > requirements.lock && rm build.in build.lock build.head build.tail

test-alfworld: $(VENV)/.dev alfworld ## household against the real engine: same games, same answers
	TURNWISE_ALFWORLD_PYTHON=.venv-alfworld/bin/python $(BIN)/python -m pytest tests/conformance $(ARGS)

test-vllm: $(VENV)/.dev ## engine=vllm over vLLM itself (TURNWISE_VLLM_PYTHON=..., by default .venv-vllm/bin/python; minutes)
	TURNWISE_VLLM_PYTHON=$${TURNWISE_VLLM_PYTHON:-.venv-vllm/bin/python} $(BIN)/python -m pytest tests/conformance/test_vllm.py tests/integration/test_vllm_processes.py $(ARGS)

test-slurm: $(VENV)/.dev ## jobs of a Slurm of one node that the test starts (apt-get install slurm-wlm munge; minutes)
	$(BIN)/python -m pytest tests/conformance/test_slurm.py $(ARGS)

# What CUDA brings beside .venv may be missing: the parts that need it say so. DRY=cpu installs nothing more.
gpu: $(VENV)/.dev $(VENV)/.bfcl ## all that needs a device, in thirty minutes on one (DRY=cpu: tiny, on a CPU); ARGS="parts=tests,update_4b"
	@test "$(DRY)" = cpu || $(MAKE) --no-print-directory .venv-vllm/.done || echo "make gpu: no vLLM; what needs it is left out" >&2
	$(BIN)/python benchmarks/gpu.py $(if $(DRY),dry=$(DRY)) $(ARGS)

tiny: setup ## rebuild the shipped policy from its recipe (within an hour on two cores); ARGS="--ship" puts it into the package
	$(BIN)/python -m scripts.recipes.tiny $(ARGS)

smollm2: setup gguf ## SmolLM2-135M-Instruct, fetched by checksum and converted for policy=smollm2 (93 MB, a minute)
	$(BIN)/python -m scripts.recipes.smollm2 $(ARGS)

real: smollm2 ## a real model learns: SFT of twelve updates, then PivotRL, and a page with both (a quarter of an hour on two quiet cores)
	$(BIN)/python -m scripts.recipes.rehearsal
	$(BIN)/python train.py sweep=turnwise_real rows=warm,pivotrl seed=0 $(ARGS)
	$(BIN)/python scripts/report.py outputs/turnwise/real/warm/seed0 outputs/turnwise/real/pivotrl/seed0 --html outputs/turnwise/real/compared.html

# Each page names the commands that write its tables and its figure. Pages about runs that are not kept name a folder of outputs/.
results: setup ## write the tables and figures of docs/results again from the runs of results/ and outputs/ (minutes)
	@grep -rhoE '(Written|drawn) by `python scripts/report.py (sweep|summary)[^`]*' --include='*.md' docs | cut -d'`' -f2 | sort -u \
		| while read -r command; do echo "$$command"; $(BIN)/$$command > /dev/null || exit 1; done

cluster-check: setup ## try on one node what jobs need: sharded weights, resuming, a vLLM server (docs/cluster.md); ARGS=MODEL, DRY=cpu
	DRY=$(DRY) PYTHON=$(BIN)/python scripts/slurm/check.sh $(ARGS)

docs: $(VENV)/.docs ## the documentation as a site in build/site, for a browser without a network; broken links and anchors are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml # with --quiet it would not count its warnings

# What pip-audit says where there is no network, and where a mirror of the registry has no advisories
UNREACHED = ConnectionError|Max retries|timed out|not found on PyPI

audit: .venv-audit/.done ## known holes in the pinned libraries; needs the network, and says so where it reaches none (an error, unless OFFLINE=ok)
	@for file in requirements.lock requirements/*.lock; do \
		rm -f .venv-audit/report.json; \
		.venv-audit/bin/pip-audit -r $$file --strict --no-deps --disable-pip --progress-spinner off -f json \
			-o .venv-audit/report.json 2> .venv-audit/said && continue; \
		if test -s .venv-audit/report.json; then \
			cat .venv-audit/said; echo "make audit: $$file; details are in .venv-audit/report.json" >&2; exit 1; \
		elif grep -qE "$(UNREACHED)" .venv-audit/said; then \
			echo "make audit: nothing was checked from $$file on, for the advisory service could not be asked" >&2; \
			test "$(OFFLINE)" = ok; exit; \
		else cat .venv-audit/said >&2; exit 1; fi; \
	done

clean: ## remove environments and caches; outputs/ stays
	rm -rf .venv .venv-alfworld .venv-audit build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache src/*.egg-info
	find . -name __pycache__ -type d -not -path './outputs/*' -prune -exec rm -rf {} +

# Stamps: a file inside the environment, newer than what it was made from.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer with its venv module is needed; on Debian: apt install python3 python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements.txt requirements.lock pyproject.toml | $(BIN)/python
	@echo "make setup: installing the libraries of a run into $(VENV) (a few minutes the first time)"
	$(PIP) -r requirements.txt -c requirements.lock
	$(PIP) --no-deps --editable .
	@touch $@
	@echo "make setup: done; 'make train' trains, or: . $(BIN)/activate && python train.py --help"

$(VENV)/.dev $(VENV)/.docs: $(VENV)/.%: $(VENV)/.run
	$(PIP) $$($(NAMED) $*) -r requirements.txt -c requirements.lock
	@touch $@

$(EXTRAS:%=$(VENV)/.%) $(VENV)/.bfcl: $(VENV)/.%: $(VENV)/.run
	$(PIP) --no-deps $$($(NAMED) $*) -c requirements.lock
	@touch $@

$(VENV)/.reasoning_gym: | compiler
$(VENV)/.published: $(VENV)/.verifiers

.venv-audit/.done: | $(BIN)/python
	$(BIN)/python -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
	@touch $@

.venv-vllm/.done: requirements/vllm.lock | $(BIN)/python
	$(BIN)/python -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.venv-alfworld/.done: requirements/alfworld.lock | $(BIN)/python
	$(BIN)/python -m venv .venv-alfworld
	.venv-alfworld/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@
