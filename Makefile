# Everything a developer or CI types. Needs python3 >= 3.11 with venv, gcc and make; `make help` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.complete
# One line of oracle/pin.toml, the only copy of the pins: project and oracle share a torch, and its download.
TORCH := $(shell sed -n 's/^ *"\(torch==.*+cpu\)",$$/\1/p' oracle/pin.toml)
TORCH_INDEX := $(shell sed -n 's/^torch_index = "\(.*\)"$$/\1/p' oracle/pin.toml)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input --quiet --progress-bar off
LOG := .venv/setup.log
GIVE_UP := grep -h ERROR $(LOG) | tail -3 >&2; echo "make: pip failed, its output is in $(LOG); make setup goes on from here" >&2; exit 69
MAKE_CHECKPOINT := tools/make_checkpoint.py tools/synthetic_configs.py tools/synthetic_weights.py tools/synthetic_tokenizer.py
EXPAND_CHECKPOINT := tools/expand_checkpoint.py

.PHONY: help run setup oracle checkpoints test mutants explore survival sanitize lint cuda clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: setup oracle checkpoints ## set up what is missing, then gate the tiny model: our engine against the real vLLM
	@$(BIN)/gate run --recipe tiny --conc 1,2,4; code=$$?; \
	case $$code in \
	  0) ;; \
	  1) echo "make run: exit code 1, FAIL";; \
	  2) echo "make run: exit code 2, INCONCLUSIVE: nothing is broken, this machine cannot tell the arms apart";; \
	  3) echo "make run: exit code 3, VOID: the reasons are in the table";; \
	  *) echo "make run: exit code $$code: the run did not happen or did not finish";; \
	esac; exit $$code

setup: $(STAMP) ## the project's environment in .venv

# The stamp is written last: a set-up that was cut short is gone over again, and a second one costs nothing.
$(STAMP): pyproject.toml oracle/pin.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: found $$($(PYTHON) --version 2>/dev/null || echo no $(PYTHON)); expected Python 3.11 or newer; install it, then: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 69; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $(PYTHON) has no venv module; on Debian: apt install python3-venv" >&2; exit 69; }
	@echo "setup: creating .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
# Where there is no NVIDIA driver, torch must be the CPU build: "+cpu" keeps pip from taking 3 GB of CUDA libraries.
	@if ! command -v nvidia-smi >/dev/null 2>&1; then \
	  echo "setup: installing $(TORCH)"; \
	  $(PIP) '$(TORCH)' >>$(LOG) 2>&1 || { \
	    echo "setup: the configured indexes have no $(TORCH): asking $(TORCH_INDEX)"; \
	    $(PIP) --extra-index-url $(TORCH_INDEX) '$(TORCH)' >>$(LOG) 2>&1; } || { $(GIVE_UP); }; \
	fi
	@echo "setup: installing the project and its tools"
	@$(PIP) --editable '.[dev]' >>$(LOG) 2>&1 || { $(GIVE_UP); }
	@touch $@

oracle: setup ## the pinned vLLM for CPU, in .oracle/cpu
	@$(BIN)/python -m oracle install cpu

checkpoints: checkpoints/tiny-oracle/config.json checkpoints/tiny-moe-oracle/config.json ## synthetic checkpoints in nvidia's layout, and the oracle's copies

checkpoints/tiny/config.json checkpoints/tiny-moe/config.json: checkpoints/%/config.json: $(MAKE_CHECKPOINT) | $(STAMP)
	@$(BIN)/python tools/make_checkpoint.py --shape $* --layout modelopt --seed 0 --overwrite checkpoints/$*

checkpoints/tiny-oracle/config.json: checkpoints/tiny/config.json $(EXPAND_CHECKPOINT)
	@$(BIN)/python tools/expand_checkpoint.py --overwrite checkpoints/tiny checkpoints/tiny-oracle

# vLLM for CPU runs no quantised MoE at all.
checkpoints/tiny-moe-oracle/config.json: checkpoints/tiny-moe/config.json $(EXPAND_CHECKPOINT)
	@$(BIN)/python tools/expand_checkpoint.py --all --overwrite checkpoints/tiny-moe checkpoints/tiny-moe-oracle

test: setup ## every test that needs no GPU; those of the oracle where it is installed
# One worker more than there are cores: many tests wait for servers of their own.
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $$(( $$(nproc) + 1 )) --dist loadfile --no-loadscope-reorder

mutants: setup ## change every line that judges, one at a time: some test must fail each time
	@OMP_NUM_THREADS=1 $(BIN)/python tools/mutants.py

sanitize: setup ## compute-sanitizer over the kernels' tests; needs an NVIDIA GPU and its toolkit, and nothing timed beside it
	@$(BIN)/python tools/sanitize.py

explore: setup ## the property tests on new random examples; make test always takes the same ones
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile explore -n $$(nproc) --dist loadfile

survival: setup ## kill a run before every one of its operations, and at 200 random times; about half an hour
	@SURVIVAL_EVERY=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/gate/survival

lint: setup ## style, formatting, types, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

cuda: setup ## compile every CUDA source for sm_90a and sm_121a; no GPU needed
	@if [ -n "$$NVCC" ] || command -v nvcc >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ]; then \
	  $(BIN)/python -c 'from engine.kernels.build import TARGETS, build; [build(arch) for arch in TARGETS]'; \
	else \
	  echo "make cuda: SKIPPED: no nvcc on this machine, so no CUDA source was compiled"; \
	fi

clean: ## remove what set-up built: environments, checkpoints, kernels, caches; results stay
	rm -rf .venv .oracle checkpoints build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
