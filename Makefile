# What a developer and the continuous integration run. None of it needs an environment variable, a database server or
# root's rights; `make venv` needs a package index.

BIN := .venv/bin
READY := .venv/.ready

# Each database is a pytest run of its own. MySQL and MariaDB take part where a server is given.
DATABASES := sqlite postgres $(if $(BACKWAVE_TEST_MYSQL_URL),mysql)

# More arguments for pytest, for example: make test-postgres PYTEST="-k fence -x"
PYTEST :=

# A process for each core: one takes the tests that start processes, one after the other, and the rest all others.
SIDE_BY_SIDE := -n auto --dist loadgroup

# Where `make shop` listens.
PORT := 8000

# What `make quick` tries of the store: where most goes wrong, and what has statements of its own on PostgreSQL.
QUICK := claim fence settle

# What `make bench` measures, for example: make bench BENCH="--drain --only django_backwave,pgqueuer"
BENCH := --all

# How many hostile cases `make fuzz` tries on each database.
CASES := 10000

# More arguments for the simulator, for example: make simulate SIMULATE="--database postgres"
SIMULATE :=

.DEFAULT_GOAL := help
# Runs beside each other would only disturb the tests that measure time.
.NOTPARALLEL:
.PHONY: help venv demo chaos shop test $(DATABASES:%=test-%) test-matrix conformance quick check mutate fuzz simulate docs bench format clean

help: ## show this list
	@grep -E '^[a-z][a-z-]*:.*## ' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## ' '{ printf "make %-11s %s\n", $$1, $$2 }'

venv: $(READY) ## create .venv with everything that the other targets need

# A version manager may have put a `python3.13` on the path that only says it is not installed: try, don't look.
$(READY): pyproject.toml
	@if ! $(BIN)/python -c '' 2> /dev/null; then \
		for python in python3.13 python3.12 python3 none; do \
			$$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' > /dev/null 2>&1 && break; \
		done; \
		if [ $$python = none ]; then echo 'No Python 3.12 or newer found.' >&2; exit 1; fi; \
		echo "Creating .venv with $$($$python --version)"; \
		$$python -m venv --clear .venv; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY) ## run the example shop through crashes and freezes, and show what became of each job
	$(BIN)/python example_project/manage.py demo

chaos: $(READY) ## kill and freeze workers under 500 orders, and compare the ledger (a minute or two)
	$(BIN)/python example_project/manage.py chaos

# On SQLite in example_project/var, whatever database the environment names.
shop: $(READY) ## open the example shop in a browser, with a worker and the admin; PORT=8001 for another port
	@DATABASE_URL= $(BIN)/python example_project/manage.py shop --port $(PORT)

test: $(READY) ## run all tests on every database; all of them run, also after a failure
	@$(MAKE) --no-print-directory --keep-going $(DATABASES:%=test-%)

test-sqlite: $(READY)
	BACKWAVE_TEST_DATABASE=sqlite $(BIN)/pytest -q $(SIDE_BY_SIDE) $(PYTEST)

# The core knows no database, so that once is enough for its tests.
$(filter-out test-sqlite,$(DATABASES:%=test-%)): test-%: $(READY)
	BACKWAVE_TEST_DATABASE=$* $(BIN)/pytest -q $(SIDE_BY_SIDE) --ignore=tests/core $(PYTEST)

# Where `make test` tries one Python and one Django, and all of it. Nox makes an environment for each pair.
test-matrix: $(READY) ## run what a version could break, on each Django and each Python that we support
	$(BIN)/nox --no-error-on-missing-interpreters

# On PostgreSQL both on the server that comes with the tests and on one that BACKWAVE_TEST_POSTGRES_URL names.
conformance: $(READY) ## hold every guarantee on every database, and make the table in docs/guarantees.md of it
	rm -f build/conformance-*.json
	@for database in $(DATABASES); do \
		BACKWAVE_TEST_POSTGRES_URL= BACKWAVE_TEST_DATABASE=$$database $(BIN)/pytest -q $(PYTEST) tests/conformance || exit; \
	done
	@if [ -n "$$BACKWAVE_TEST_POSTGRES_URL" ]; then \
		BACKWAVE_TEST_DATABASE=postgres $(BIN)/pytest -q $(PYTEST) tests/conformance; \
	fi
	$(BIN)/python -m tests.evidence

quick: $(READY) ## run what takes no time, in two processes: core, API and the fence on SQLite, the fence on PostgreSQL too
	BACKWAVE_TEST_DATABASE=sqlite $(BIN)/pytest -q -n 2 -m 'not slow' $(PYTEST) tests/core tests/api $(QUICK:%=tests/store/test_%.py)
	BACKWAVE_TEST_DATABASE=postgres $(BIN)/pytest -q -n 2 -m 'not slow' $(PYTEST) $(QUICK:%=tests/store/test_%.py)

check: $(READY) ## check style, types, layers and migrations
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/manage.py makemigrations --check --dry-run

mutate: $(READY) ## break the fence, the sweep and the claim on purpose: a test must notice each time
	$(BIN)/python -m tests.mutate

fuzz: $(READY) ## try 10,000 hostile cases on each database, and garbage in every column; CASES=500 for fewer
	@for database in $(DATABASES); do \
		BACKWAVE_FUZZ_CASES=$(CASES) BACKWAVE_TEST_DATABASE=$$database $(BIN)/pytest -q $(PYTEST) tests/fuzz || exit; \
	done

simulate: $(READY) ## simulate whole systems under faults, for ever: new seeds, and what they find is kept; Ctrl-C ends it
	$(BIN)/python -m tests.simulation --minutes 0 --keep $(SIMULATE)

docs: $(READY) ## build the site in build/docs; any warning is an error
	$(BIN)/sphinx-build -q -n -W --keep-going -d build/doctrees docs build/docs

bench: $(READY) ## measure beside other queues, an hour or more; BENCH="--drain --quick" for less
	$(BIN)/python -m benchmarks $(BENCH)

format: $(READY) ## bring the code into shape
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

clean: ## remove whatever the other targets made
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf example_project/var/*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
