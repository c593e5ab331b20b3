"""Describes the distribution airflow-provider-tidemark to Airflow: the target of its entry point.

Source: Airflow documentation, "How to create your own provider".
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

DISTRIBUTION: Final = "airflow-provider-tidemark"


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": DISTRIBUTION,
        "name": "Tidemark",
        "description": "Change data capture from PostgreSQL to Delta Lake",
        "versions": [version(DISTRIBUTION)],
        "connection-types": [
            {
                "connection-type": "tidemark",
                "hook-class-name": "tidemark_airflow.source_hook.TidemarkSourceHook",
            }
        ],
        "extra-links": ["tidemark_airflow.page.pipeline_link.PipelineLink"],
    }
