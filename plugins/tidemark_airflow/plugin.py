"""Defines the plugin that Airflow loads, in a checkout by `plugins/tidemark_plugin.py`, otherwise by an entry point."""

from __future__ import annotations

from typing import Any

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from tidemark_airflow.page import views


class TidemarkPlugin(AirflowPlugin):
    name = "tidemark"
    fastapi_apps: list[Any] = views.applications()
    external_views: list[Any] = views.external_views(conf.get("api", "base_url", fallback="/"))
