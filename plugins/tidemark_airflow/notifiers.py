"""Calls the pipeline's notifier once when a table is parked (R6).

`alerts.notifier` of the pipeline file is the dotted path of a class or function that takes `message=` and returns an
Airflow notifier. A notifier whose parameter has another name, as `SlackNotifier(text=message)`, needs such a function.
Without `alerts.notifier` the message is only logged, and the run that announces it fails, once.
"""

from __future__ import annotations

import logging

from airflow.sdk import Context
from airflow.sdk.module_loading import import_string

from tidemark.config import PipelineConfig

log = logging.getLogger(__name__)


def notify(config: PipelineConfig, message: str, context: Context) -> None:
    """Log the message, and pass it to the pipeline's notifier if it has one. Raises what the notifier raises."""
    log.warning("Alert: %s", message)
    if config.alerts.notifier is not None:
        import_string(config.alerts.notifier)(message=message)(context)
