# On a fresh machine `make demo` and `make test` are all it takes (Python 3.11+, make, pip).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEV := pytest pytest-xdist hypothesis scikit-learn pandas pyarrow tensorboard "optuna>=4" "dp-accounting>=0.6,<0.7" "cryptography>=42" "networkx>=3.2" "scipy>=1.11" "flwr>=1.41,<2" "ray>=2.55" playwright "ruff>=0.9" pyright
SITE := "mkdocs-material>=9.6,<10" "mkdocstrings[python]>=0.29" "nbconvert>=7.16" "ipykernel>=6.29" build

.PHONY: demo test test-slow lint bench docs notebooks dist clean

$(BIN)/fedsub: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedsub into $(VENV) (torch is a large download) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(BIN)/fedsub
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(DEV)
	@touch $@

demo: $(BIN)/fedsub
	$(BIN)/fedsub compare movielens-like --out runs/demo --resume

# Two processes with a thread each: more threads than cores would wait for each other.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-slow: $(VENV)/.docs
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(BIN)/fedsub
	$(BIN)/fedsub bench

$(VENV)/.docs: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(SITE)
	@touch $@

# The site, into site/index.html; a warning is an error (mkdocs.yml), unless --quiet hides it.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Runs the notebooks from the top and keeps what they print; tests/test_notebooks.py runs their cells.
notebooks: $(VENV)/.docs
	$(BIN)/python -m nbconvert --to notebook --execute --inplace docs/notebooks/*.ipynb

# A wheel and a source distribution, into dist/.
dist: $(VENV)/.docs
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf $(VENV) runs site dist
