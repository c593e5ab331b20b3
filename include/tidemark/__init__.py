"""Captures changes of PostgreSQL tables into Delta Lake tables, without a daemon.

The library never imports Airflow; `plugins/tidemark_airflow` and `spark_apps` call it. Start with `capture`, whose
modules are the stages of a run: preflight, waiting, drain, merge, confirm. docs/guarantees.md has the rules R1 to R11.
"""
