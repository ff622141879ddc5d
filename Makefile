# Two commands for a new user: `make demo` and `make test`. Each makes .venv, installs what it
# needs once (again only when pyproject.toml changes) and runs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= 2
# Three processes on two cores: a third of the time of the whole suite, brokers and clients wait.
WORKERS ?= $(shell expr $(JOBS) + $(JOBS) / 2)
# Quietly: setuptools would warn of its own plans.
PIP    := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet
# The sources as a folder of the path: Spark lists the modules there to find format("kafkalite").
INSTALL := $(PIP) --config-settings editable_mode=compat

.PHONY: demo docs help test test-deep test-fast simulate test-external lint protocol-page bench bench-streams \
        bench-nexmark bench-state bench-broker bench-cluster bench-cleaner wheels clean

demo: $(VENV)/.demo
	$(BIN)/python examples/flights/demo.py

help:
	@echo 'make demo           the main job on real data'
	@echo 'make test           the tests; test-fast without JVMs, clients and what is slow'
	@echo 'make test-deep      clusters of Spark, moves between engines, the wheel, benchmarks: minutes'
	@echo 'make test-external  suites that others wrote; simulate: brokers, workers in a time of their own'
	@echo 'make lint           ruff, mypy --strict'
	@echo 'make bench          log to log; bench-streams, bench-broker, bench-cluster, bench-cleaner beside Apache Kafka'
	@echo 'make wheels         dist/*.whl for this Python, with the native codecs, tried without a compiler'
	@echo 'make docs           the site, into build/site; protocol-page: docs/protocol.md anew'
	@echo 'make clean          without .venv and what the demo made'

# Tests start many interpreters; without the bytecode of the first, each would compile everything.
test test-deep test-fast: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not deep"

# What takes minutes and seldom breaks: clusters of Spark, moves between engines, the wheel, benchmarks.
test-deep: $(VENV)/.dev
	$(BIN)/python -m pytest -m deep

# Two processes a core: what is fast mostly waits for brokers and processes to answer.
test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -n $$((2 * $(JOBS))) --dist worksteal -m "not slow"

# Suites that others wrote, against a fresh broker: SUITES="franz-go librdkafka", or all that can run.
test-external: $(VENV)/.dev
	$(BIN)/python tests/external/run.py --logs build/external $(SUITES)

lint: $(VENV)/.dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# The site, from docs/, docstrings and the pictures that the engine's results draw.
docs: $(VENV)/.dev
	cd docs && ../$(BIN)/python -m pictures
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir build/site
	@echo "build/site/index.html"

# docs/protocol.md, from the handlers and the definitions of messages.
protocol-page: $(VENV)/.dev
	$(BIN)/python -m kafkalite.core.handlers.protocol_page > docs/protocol.md

# One wheel, for this machine's Python and libc. What an earlier build left is not packed again.
wheels: | $(VENV)/bin/python
	rm -rf build/lib* build/bdist* build/temp* dist
	PYTHONWARNINGS=ignore $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python tests/package/check_wheel.py dist/kafkalite-*.whl

# Topologies, ours alone.
bench: $(VENV)/.dev
	$(BIN)/python -m bench.streams --ours --records 1000000 $(ARGS)

# The same beside Kafka Streams: KIT and LAB as bench/streams says; ARGS="--only json --rounds 2".
bench-streams: $(VENV)/.dev
	$(BIN)/python -m bench.streams $(if $(KIT),--kit $(KIT)) $(if $(LAB),--lab $(LAB)) $(ARGS)

# Nexmark's queries, ours alone: ARGS="--only q5 --records 300000".
bench-nexmark: $(VENV)/.dev
	$(BIN)/python -m bench.nexmark $(ARGS)

# State of ten million keys in RocksDB: ARGS="--keys 1000000 --updates 300000".
bench-state: $(VENV)/.dev
	$(BIN)/python -m bench.streams.state10m $(ARGS)

# Histories of simulated brokers, clusters and workers, one each of every seed: COUNT, or FIRST:LAST.
simulate: SEEDS ?= 1000
simulate: $(VENV)/.dev
	PYTHONHASHSEED=0 KAFKALITE_SEEDS=$(if $(findstring :,$(SEEDS)),,0:)$(SEEDS) $(BIN)/python -m pytest -n 2 \
	    tests/core/test_simulated_histories.py tests/core/test_simulated_cluster.py \
	    tests/streams/test_simulated_workers.py

# Ours beside Apache Kafka: KIT and LAB as bench/broker.py says; ARGS=--ours needs neither.
bench-broker: $(VENV)/.dev
	$(BIN)/python bench/broker.py $(if $(KIT),--kit $(KIT)) $(if $(LAB),--lab $(LAB)) $(ARGS)

# Three brokers beside Apache Kafka's, KIT and LAB as bench/cluster.py says: ARGS="--cases kill9 --produce p1k-128k".
bench-cluster: $(VENV)/.dev
	$(BIN)/python bench/cluster.py $(if $(KIT),--kit $(KIT)) $(if $(LAB),--lab $(LAB)) $(ARGS)

# The log cleaner, alone or (KIT and LAB) beside Apache Kafka's.
bench-cleaner: $(VENV)/.dev
	$(BIN)/python -m bench.cleaner $(if $(KIT),--kit $(KIT)) $(if $(LAB),--lab $(LAB)) $(ARGS)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "kafkalite needs Python 3.11 or newer; $(PYTHON) is %d.%d. Set PYTHON=..." % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip

SOURCES := pyproject.toml $(wildcard $(foreach kind,pyx pxd h,kafkalite/*/*.$(kind) kafkalite/*/*/*.$(kind)))

$(VENV)/.demo: $(SOURCES) | $(VENV)/bin/python
	$(INSTALL) -e '.[spark,examples]'
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(VENV)/bin/python
	$(INSTALL) -e '.[registry,arrow,cluster,sketches,state,warehouse,spark,examples,clients,dev]'
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist *.egg-info warehouse kafkalite-data
