"""The backfill's form: what Airflow refuses by its schema, what the library is asked for, and what a label says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from tests.airflow.conftest import SHOP
from tidemark.config import PipelineConfig
from tidemark.config.file_reader import load
from tidemark.errors import BackfillFormInvalid
from tidemark_airflow.forms import backfill_form


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP.replace("[shop.*]", "[shop.orders, 'stock.*']"))
    return load(file)


def filled(config: PipelineConfig, **conf: Any) -> dict[str, Any]:
    """What Airflow makes of a conf: the form's defaults under it, all of it checked."""
    params = ParamsDict(backfill_form.form(config))
    params.update(conf)
    return params.validate()


def test_the_multi_select_offers_what_the_file_names(config: PipelineConfig) -> None:
    tables = backfill_form.form(config)["tables"]
    assert tables.schema["examples"] == ["shop.orders", "stock.*"]
    assert tables.schema["values_display"] == {
        "shop.orders": "shop.orders",
        "stock.*": "stock.* (all that are captured)",
    }


def test_every_field_has_a_title_and_a_default_that_is_valid(config: PipelineConfig) -> None:
    assert filled(config)["chunk_rows"] == config.bounds.chunk_rows
    assert all(isinstance(field, Param) and field.schema["title"] for field in backfill_form.form(config).values())


def test_a_form_without_tables_asks_for_all_that_are_wanted(config: PipelineConfig) -> None:
    for tables in ([], None):
        request = backfill_form.request(config, filled(config, tables=tables), ["tables"])
        assert (request.tables, request.mode, request.row_filter, request.keys, request.replace) == (
            (),
            "chunks",
            None,
            (),
            False,
        )


def test_what_is_typed_reaches_the_library(config: PipelineConfig) -> None:
    conf = {
        "tables": ["shop.orders"],
        "other_tables": [" stock.items", "shop.orders", " "],
        "row_filter": "  total > 5\n",
        "chunk_rows": 10,
        "replace": True,
    }
    request = backfill_form.request(config, filled(config, **conf), conf)
    assert request.tables == ("shop.orders", "stock.items")
    assert (request.row_filter, request.chunk_rows, request.replace, request.readers) == ("total > 5", 10, True, 2)


def test_keys_reach_the_library(config: PipelineConfig) -> None:
    conf = {"tables": ["shop.orders"], "mode": "keys", "keys": [{"id": 7, "line": "a"}]}
    request = backfill_form.request(config, filled(config, **conf), conf)
    assert request.mode == "keys"
    assert list(request.keys) == [{"id": 7, "line": "a"}]


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"chunk_rows": 0}, "chunk_rows: 0 is less than the minimum of 1"),
        ({"chunk_rows": "many"}, "chunk_rows: 'many' is not of type 'integer'"),
        ({"readers": 17}, "readers: 17 is greater than the maximum of 16"),
        ({"mode": "fast"}, "mode: 'fast' is not one of"),
        ({"tables": "shop.orders"}, "tables: 'shop.orders' is not of type 'array', 'null'"),
        ({"tables": [5]}, "tables: 5 is not of type 'string'"),
        ({"keys": [7]}, "keys: 7 is not of type 'object'"),
        ({"keys": [{}]}, "keys: {}"),
        ({"replace": "yes"}, "replace: 'yes' is not of type 'boolean'"),
        ({"row_filter": ["a"]}, r"row_filter: \['a'\] is not of type 'string', 'null'"),
    ],
)
def test_airflow_refuses_what_the_schema_excludes(config: PipelineConfig, conf: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamValidationError, match=f"Invalid input for param {message}"):
        filled(config, **conf)


def test_a_key_that_is_no_field_is_refused_rather_than_ignored(config: PipelineConfig) -> None:
    with pytest.raises(BackfillFormInvalid, match=r"'table' is no field \(did you mean 'tables'\?\)"):
        backfill_form.request(config, filled(config, table=["shop.orders"]), ["table"])
    with pytest.raises(BackfillFormInvalid, match=r"'table' is no field\.") as refused:
        backfill_form.request(config, filled(config, table=[], tables=["shop.orders"]), ["table", "tables"])
    assert "did you mean" not in str(refused.value)


def test_what_airflow_adds_to_a_conf_by_itself_is_no_mistake(config: PipelineConfig) -> None:
    assert backfill_form.request(config, filled(config), ["openlineage"]).tables == ()


def test_a_snapshot_is_exported_by_one_task(config: PipelineConfig) -> None:
    assert backfill_form.readers(filled(config, readers=3)) == [1, 2, 3]
    assert backfill_form.readers(filled(config, readers=3, mode="exported_snapshot")) == [1]
