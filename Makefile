PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all lint docs bench clean

demo: $(VENV)/ready
	$(BIN)/ridgerider demo

test: lint
	$(BIN)/mypy
	$(PYTEST)

# The long proofs, compiled as for a user (see conftest.py), and all others once more as on a
# machine whose eigh returns other bases.
test-all: test
	XLA_FLAGS=--xla_cpu_multi_thread_eigen=false $(PYTEST) -m long
	$(PYTEST) --rotate-bases 1

lint: $(VENV)/ready-test
	$(BIN)/ruff format --check
	$(BIN)/ruff check

docs: $(VENV)/ready-docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going docs docs/_build/html
	@echo docs/_build/html/index.html

BENCHES := peers workers

bench: $(VENV)/ready-test
	for name in $(BENCHES); do $(BIN)/ridgerider bench $$name || exit 1; done

clean:
	rm -rf $(VENV) docs/_build .mypy_cache .pytest_cache .ruff_cache

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/ready-%: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@
