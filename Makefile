# The commands of Strandline. `make demo` and `make test` set up what they need; a second run
# installs nothing. Variables, given on the command line:
#
#   PYTHON=python3.12     the interpreter that .venv is made from (3.11 or newer)
#   ONLY=metastore,wire   the benchmark groups to run; without it, all
#   ARGS='--keep'         further options for strandline demo, or for pytest
#   SEED=7                the seed of the random examples of make soak; without it, a new one

.POSIX:
.SILENT:
.PHONY: help setup servers demo test teeth lint bench soak clean

BIN = .venv/bin
# The tests start many processes; what one of them compiled the others can use.
PYTEST_ALONE = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q
PYTEST = $(PYTEST_ALONE) -n auto --dist loadfile --no-loadscope-reorder

help:
	echo 'make demo    sets up and runs the main job'
	echo 'make test    sets up and runs the tests'
	echo 'make lint    runs the static checks'
	echo 'make bench   runs the benchmarks; ONLY=group,group chooses among them'
	echo 'make teeth   plants faults that the tests must find, runs the slow tests and the static checks'
	echo 'make soak    runs the long and random tests; SEED=7 repeats a run'
	echo 'make setup   sets up: .venv, and Java where it is missing'
	echo 'make servers sets up what the tests start: PostgreSQL, its Java driver, etcd, an archive of the classes of Spark'
	echo 'make clean   removes what the commands made, except .venv'

setup:
	PYTHON='$(PYTHON)' scripts/setup

servers: setup
	scripts/setup postgresql etcd-server
	$(BIN)/python -m tests.spark_classes
	# In a new checkout, each process of the run would compile all tests, at the same time as the others,
	# and compute the characters that Hypothesis makes texts of.
	ls .hypothesis/unicode_data/*/codec-*.gz > /dev/null 2>&1 || \
	$(BIN)/python -c 'from hypothesis.strategies import text; text().validate()'
	ls tests/__pycache__/conftest.*-pytest-*.pyc > /dev/null 2>&1 || \
	$(PYTEST_ALONE) --collect-only tests > /dev/null || true # the run says what cannot be collected

demo: setup
	$(BIN)/strandline demo $(ARGS)

test: setup servers
	echo 'pytest: the tests'
	$(PYTEST) -m 'not soak and not teeth and not slow' tests $(ARGS)

# The static checks run beside the rest, where one core is often idle; what they say comes last.
teeth: setup servers
	mkdir -p build
	$(MAKE) --no-print-directory lint > build/lint.log 2>&1 & lint=$$!; tested=0; linted=0; \
	echo 'pytest: the planted faults and the slow tests'; \
	$(PYTEST) -m '(teeth or slow) and not soak' tests $(ARGS) || tested=$$?; \
	wait $$lint || linted=$$?; \
	cat build/lint.log; \
	exit $$((tested ? tested : linted))

lint: setup
	echo 'ruff: style and mistakes'
	$(BIN)/ruff check --quiet .
	echo 'ruff: format'
	$(BIN)/ruff format --check .
	echo 'mypy: types'
	$(BIN)/mypy --strict
	echo 'import-linter: layers'
	$(BIN)/lint-imports --no-logo

bench: setup servers
	scripts/setup jdbc
	$(BIN)/python -m bench --only '$(ONLY)'

soak: setup servers
	scripts/setup jdbc spark-3.5
	seed=$${SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; \
	echo "pytest: the long and random tests; SEED=$$seed repeats them"; \
	$(BIN)/python -m pytest -q -m 'soak or (hypothesis and not teeth)' tests \
		--hypothesis-profile=random --hypothesis-seed="$$seed" $(ARGS)

clean:
	echo 'removing build results and caches'
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
