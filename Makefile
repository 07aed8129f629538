# `make` alone lists the targets. Each of them works as the first command typed after cloning.
#
# Variables:
#   PYTHON       interpreter that makes the virtual environment (3.11 or newer); default python3
#   TORCH_INDEX  package index that torch is taken from, for another build of it than the default
#                index has (for a machine without a GPU: the index of torch's CPU builds)
#   CMAKE_ARGS   more options for compiling llama.cpp, such as -DGGML_CUDA=ON
#   RETROGRAD_CACHE  where the compiled wheel is kept; default ~/.cache/retrograd
#   RETROGRAD_BROWSER  the Chromium for tests in a browser; otherwise one is looked for
#   MODEL        a GGUF file for `make screenshots`, in place of the bundled tiny model
#   PYTEST_ARGS  more arguments for pytest, such as "-k reward"

PYTHON ?= python3
TORCH_INDEX ?=
CMAKE_ARGS ?=
PYTEST_ARGS ?=
export PYTHON TORCH_INDEX CMAKE_ARGS

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BROWSER := $(VENV)/.browser
# Two files of tests at a time, each on one core: most tests wait for a process of theirs.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help venv test test-full e2e browser postgres screenshots demo lint wheel clean FORCE

help: ## list the targets
	@echo "make TARGET, where TARGET is one of:"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{printf "%-12s %s\n", $$1, $$2}'

venv: $(INSTALLED) ## make the virtual environment in .venv and install everything (quick when up to date)

$(INSTALLED): pyproject.toml Makefile .ci/venv .ci/llama-wheel .ci/llama.cmake
	@.ci/venv $(VENV)
	@touch $@

# .chosen is written by .ci/venv: what the environment was made with. Another choice makes it stale.
chosen = $(shell sed -n 's/^$(1)=//p' $(VENV)/.chosen 2>/dev/null)
BEFORE := $(call chosen,TORCH_INDEX) $(call chosen,CMAKE_ARGS)
WANTED := $(or $(TORCH_INDEX),$(call chosen,TORCH_INDEX)) $(or $(CMAKE_ARGS),$(call chosen,CMAKE_ARGS))
ifneq ($(strip $(WANTED)),$(strip $(BEFORE)))
$(INSTALLED): FORCE
endif

test: venv browser postgres ## run the tests, without the longest checks
	$(PYTEST) -m "not full" $(PYTEST_ARGS)

test-full: venv browser postgres ## run every test
	$(PYTEST) $(PYTEST_ARGS)

e2e: venv browser ## run the tests in a real browser (part of `make test`)
	$(BIN)/python -m pytest -m "not full" tests/e2e $(PYTEST_ARGS)

# The browser that is there, else Debian's package (root), else Playwright's own download.
browser: venv
	@test -x "$$(cat $(BROWSER) 2>/dev/null)" || .ci/browser $(VENV) $(BROWSER)

screenshots: venv browser ## make the pictures of the dashboard in docs/pictures (minutes)
	$(BIN)/python docs/screenshots.py $(if $(MODEL),--model $(MODEL))

postgres:
	@.ci/postgres

demo: venv ## serve the dashboard with a real run of the bundled tiny model in it, until Ctrl-C
	@trap : INT; $(BIN)/retrograd demo --to runs/demo || { ended=$$?; [ $$ended -eq 130 ] || exit $$ended; }

lint: venv ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel: venv ## build the wheel and the source archive into dist
	$(BIN)/python -m build --no-isolation --outdir dist

clean: ## remove what building and testing left behind (keeps .venv, models and runs)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
