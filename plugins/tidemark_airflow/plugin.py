"""The plugin that Airflow loads: by `plugins/tidemark_plugin.py` in a checkout, by an entry point of the wheel."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class TidemarkPlugin(AirflowPlugin):
    name = "tidemark"
