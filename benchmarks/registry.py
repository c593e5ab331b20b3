"""All benchmarks and curves, in the order of the table: each module's, imported when somebody asks."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from benchmarks.pairs import Benchmark, Curve

# Modules with lines of the table or with plots, in this order; each of them can be run alone.
MODULES: Final = (
    "drain",
    "history",
    "new_table",
    "updates",
    "large_tables",
    "backfill",
    "verifying",
    "many_tables",
    "daily",
    "age",
    "commits",
    "growth",
    "large_pipelines",
    "columns",
    "delta_merges",
    "bursts",
    "peers",
)

# They need an Airflow that runs, and minutes of an idle machine: `make bench-latency`.
BY_ITSELF: Final = ("latency", "killed", "hours")


def benchmarks_of(module: str) -> tuple[Benchmark, ...]:
    return tuple(getattr(import_module(f"benchmarks.{module}"), "BENCHMARKS", ()))


def curves_of(module: str) -> tuple[Curve, ...]:
    return tuple(getattr(import_module(f"benchmarks.{module}"), "CURVES", ()))


def benchmarks() -> dict[str, Benchmark]:
    return {benchmark.name: benchmark for module in (*MODULES, *BY_ITSELF) for benchmark in benchmarks_of(module)}


def curves() -> dict[str, Curve]:
    return {curve.name: curve for module in MODULES for curve in curves_of(module)}
