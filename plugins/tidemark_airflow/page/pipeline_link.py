"""Links a task in Airflow's UI to its pipeline on the page.

Source: Airflow documentation, "Define an operator extra link".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from tidemark_airflow.page.views import PREFIX

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class PipelineLink(BaseOperatorLink):
    name = "Tidemark"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        base_url = conf.get("api", "base_url", fallback="/").rstrip("/")
        return f"{base_url}{PREFIX}/?dag_id={ti_key.dag_id}"


LINKS: Final = (PipelineLink(),)
