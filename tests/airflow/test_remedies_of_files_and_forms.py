"""What is said of pipeline files, connections, and forms, done as it is said: what was red is green."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import SHOP
from tests.support.remedies import Told
from tidemark.command_line.invocation import find_file
from tidemark.config import airflow_connections
from tidemark.config.file_reader import load
from tidemark.errors import (
    BackfillFormInvalid,
    ConnectionInvalid,
    ConnectionMissing,
    PipelineFileInvalid,
    PipelinesNotFound,
    PipelineUnknown,
    VerifyFormInvalid,
)
from tidemark_airflow.dag_factory import pipeline_dags
from tidemark_airflow.forms import backfill_form, verify_form

ANSWERS: dict[str, Any] = {
    "tables": ["shop.orders"],
    "other_tables": [],
    "mode": "chunks",
    "row_filter": None,
    "chunk_rows": 10,
    "readers": 1,
    "keys": [],
    "replace": False,
    "share": "1/30",
    "repair": False,
}


@pytest.mark.walks(
    "PipelineFileInvalid", "PipelinesNotFound", "PipelineUnknown", "BackfillFormInvalid", "VerifyFormInvalid"
)
def test_files_and_forms_are_corrected(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path / "nowhere"))
    with told(PipelinesNotFound, "Set TIDEMARK_PIPELINES to the folder in which they lie"):
        list(pipeline_dags())
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path))
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP.replace("tables:", "tabels:"))
    with told(PipelineFileInvalid, "docs/configuration.md lists every option", "tables"):
        load(file)
    file.write_text(SHOP)
    config = load(file)
    assert [dag.dag_id for dag in pipeline_dags() if dag.dag_id.endswith("_capture")] == ["shop_capture"]
    with told(PipelineUnknown, "Give one of these names", "did you mean shop?"):
        find_file("shpo")
    assert find_file("shop") == file

    with told(BackfillFormInvalid, "Trigger the DAG again with the fields tables, other_tables", "'tables'"):
        backfill_form.request(config, ANSWERS, ["table"])
    assert backfill_form.request(config, ANSWERS, ["tables"]).tables == ("shop.orders",)
    with told(VerifyFormInvalid, "Trigger the DAG again with the fields tables, other_tables"):
        verify_form.request(config, ANSWERS, ["tables", "shar"])
    assert verify_form.request(config, ANSWERS, ["tables", "share"]).tables == ("shop.orders",)


@pytest.mark.walks("ConnectionMissing", "ConnectionInvalid")
def test_connections_are_added_and_corrected(told: Told) -> None:
    environment: dict[str, str] = {}

    def conninfo() -> str:
        return airflow_connections.look_up(
            "shop_source", environment=environment, ask_airflow=lambda _: None
        ).conninfo()

    with told(ConnectionMissing) as missing:
        conninfo()
    variable = str(missing.value.facts["variable"])
    assert f"or set {variable} to its JSON or URI" in str(missing.value)
    environment[variable] = json.dumps({"conn_type": "mysql", "host": "h"})
    with told(ConnectionInvalid, "Correct it in Airflow (Admin, Connections) or in the environment"):
        conninfo()
    environment[variable] = "postgres://me:secret@h:1/d"
    assert "host=h" in conninfo()
