"""Calls the pipeline's notifier once when a table is parked (R6).

`alerts.notifier` of the pipeline file is the dotted path of something that takes `message=` and returns an Airflow
notifier: a class, or a function of three lines where the notifier calls its text otherwise
(`SlackNotifier(text=message)`). Without one the message stands in the log and the run that announces it ends red, once.
"""

from __future__ import annotations

import logging

from airflow.sdk import Context
from airflow.sdk.module_loading import import_string

from tidemark.config import PipelineConfig

log = logging.getLogger(__name__)


def notify(config: PipelineConfig, message: str, context: Context) -> None:
    """Have the pipeline's notifier say it, if it has one, and the log in any case. Raises what the notifier raises."""
    log.warning("Told: %s", message)
    if config.alerts.notifier is not None:
        call_notifier(config.alerts.notifier, message, context)


def call_notifier(path: str, message: str, context: Context) -> None:
    """Build the notifier and call it. Raises what it raises."""
    import_string(path)(message=message)(context)
