"""Captures changes of PostgreSQL tables into Delta Lake tables, without a daemon.

The library knows nothing of Airflow; `plugins/tidemark_airflow` and `spark_apps` call it. Start with `capture`, whose
modules are the stages of a run: preflight, waiting, drain, merging, confirm. The rules that are named by number (R1 to
R11) stand in docs/guarantees.md.
"""
