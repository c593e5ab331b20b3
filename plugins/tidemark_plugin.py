"""Names the plugin that Airflow loads: the only module below plugins/ that Airflow executes by itself.

Airflow runs every other .py here as a top-level module under its bare file name, so the package
`tidemark_airflow` is named in .airflowignore; it stays importable, since plugins/ is on sys.path in every Airflow
process, the triggerer included.
"""

from __future__ import annotations

from tidemark_airflow.plugin import TidemarkPlugin

__all__ = ["TidemarkPlugin"]
