# make demo    capture a PostgreSQL shop into Delta tables and compare every row; CLUSTER=1: on a Spark cluster; FOLLOW=1: in seconds
# make test    format, lint, types and tests; TESTS="tests/ledger …": these tests alone
# make unit    the tests that need neither a server nor Java, in a minute
# Both do the set-up first, which takes seconds when it is done already. Everything made lies under .venv and .tidemark.

SHELL := /bin/sh
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help packages setup demo up down test unit lint coverage simulation soak faults fuzz clusters scheduler page bench bench-latency site lock versions dist clean witnesses tutorial release

# The first Python 3.11 of these; name another with `make PYTHON=/path/to/python3.11 …`.
PYTHON := $(shell for p in python3.11 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)

# Demo and up with a Spark cluster and an S3 server: `make demo CLUSTER=1`; with runs that follow the shop: FOLLOW=1.
export TESTS CLUSTER FOLLOW BENCH_SCALE POSTGRES_SOURCE FILES KEEP ONLY
export PYTHONPATH := include
export PYTHONPYCACHEPREFIX := $(CURDIR)/.tidemark/cache/python
SANDBOX := .venv/bin/python -m sandbox

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile
	@echo 'make up      start PostgreSQL, Airflow and its UI, and say where they are; make down stops them (CLUSTER=1: with a Spark cluster, an S3 server and a shop at work)'
	@echo 'make lint    format, lint and types alone; make site: docs/ as pages; make lock: requirements.txt anew'
	@echo 'make coverage   the tests of make test, and which lines of the library they run, in .tidemark/coverage'
	@echo 'make bench   the table and plots of docs/performance.md, in .tidemark/bench; BENCH_SCALE=small: smaller; make bench-latency: from commit to Delta, under Airflow'
	@echo 'make simulation, faults, clusters, scheduler: many seeds (TIDEMARK_SIMULATION_SEEDS), a SIGKILL at every step, Spark clusters, all that Airflow runs; each takes long'
	@echo 'make soak    a pipeline that is never left alone, for 20 minutes (TIDEMARK_SOAK_MINUTES): pgbench, alterations, backfills, kills, failovers; then the same of one that follows its source'
	@echo 'make fuzz    decoders of what other processes wrote, an hour each (TIDEMARK_FUZZ_MINUTES), under a fuzzer that sees which lines an input reaches'
	@echo "make witnesses POSTGRES_SOURCE=…  PostgreSQL's own test suites, played in a captured database; FILES=\"alter_table …\": these alone"
	@echo 'make page    the page in Airflow, in a real Chromium; pictures of it come to .tidemark/pictures'
	@echo 'make dist    sdists and wheels of both distributions in dist/, checked by twine'
	@echo 'make release the same of a version that CHANGELOG.md has a day for, and its notes'
	@echo 'make versions   the wheels in every supported Airflow, into docs/versions.md; ONLY="3.1.8": these alone; KEEP=1: keep environments'
	@echo 'make tutorial   docs/tutorial.md to the letter, in a new virtual environment'
	@echo 'make clean   remove everything that the above made'

packages setup:
	@test -n "$(PYTHON)" || { echo 'Tidemark needs Python 3.11: install it (for example `sudo apt-get install python3.11 python3.11-venv`),' \
		'or name it: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@"$(PYTHON)" -m sandbox.setup $(filter packages,$@)

unit lint: packages
	@$(SANDBOX) $@

demo up test coverage simulation soak faults fuzz clusters scheduler page bench bench-latency site lock versions dist witnesses tutorial release: setup
	@$(SANDBOX) $@

down:
	@if [ -x .venv/bin/python ]; then $(SANDBOX) down; else echo 'nothing runs'; fi

clean:
	@"$(or $(PYTHON),.venv/bin/python)" -B -m sandbox.clean
