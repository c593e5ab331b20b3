"""Defines the base class of all tasks of a pipeline: it has the pipeline's configuration and a link to the page."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperator

from tidemark.config import PipelineConfig
from tidemark_airflow.page.pipeline_link import LINKS


class PipelineOperator(BaseOperator):
    """`config` is the pipeline file as it was when the DAG was parsed."""

    operator_extra_links = LINKS

    def __init__(self, *, config: PipelineConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
