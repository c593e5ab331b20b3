"""The replay's form: what Airflow refuses by its schema, and what the library is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from tests.airflow.conftest import SHOP
from tidemark.config import PipelineConfig
from tidemark.config.file_reader import load
from tidemark.errors import ReplayRefused
from tidemark.maintenance.replay_runs import ReplayRequest
from tidemark_airflow.forms import replay_form


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    return load(file)


def filled(config: PipelineConfig, **conf: Any) -> dict[str, Any]:
    """What Airflow makes of a conf: the form's defaults under it, all of it checked."""
    params = ParamsDict(replay_form.form(config))
    params.update(conf)
    return params.validate()


def test_what_is_typed_reaches_the_library(config: PipelineConfig) -> None:
    conf = {"tables": ["shop.orders"], "other_tables": [" shop.lines "], "moment": " 0/16B3748 "}
    expected = ReplayRequest("as_of", ("shop.orders", "shop.lines"), "0/16B3748")
    assert replay_form.request(config, filled(config, **conf), conf) == expected
    staged = {"step": "staged", "tables": ["shop.orders"]}
    assert replay_form.request(config, filled(config, **staged), staged) == ReplayRequest("staged", ("shop.orders",))
    rebuild = {"step": "rebuild", "other_tables": ["shop.lines"]}
    assert replay_form.request(config, filled(config, **rebuild), rebuild) == ReplayRequest("rebuild", ("shop.lines",))


def test_an_unknown_step_and_a_key_that_is_no_field_are_refused(config: PipelineConfig) -> None:
    with pytest.raises(ParamValidationError):
        filled(config, step="forget")
    with pytest.raises(ReplayRefused, match="did you mean 'moment'"):
        replay_form.request(config, filled(config), {"momant": "0/1"})
