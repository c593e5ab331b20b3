"""The verify's form: what Airflow refuses by its schema, and what the library is asked for."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from tests.airflow.conftest import SHOP
from tidemark.config import PipelineConfig
from tidemark.config.file_reader import load
from tidemark.errors import VerifyFormInvalid
from tidemark_airflow.forms import backfill_form, verify_form


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    file = tmp_path / "shop.yaml"
    file.write_text(SHOP)
    return load(file)


def filled(config: PipelineConfig, **conf: Any) -> dict[str, Any]:
    """What Airflow makes of a conf: the form's defaults under it, all of it checked."""
    params = ParamsDict(verify_form.form(config))
    params.update(conf)
    return params.validate()


def test_a_scheduled_run_compares_a_thirtieth_and_writes_nothing(config: PipelineConfig) -> None:
    request = verify_form.request(config, filled(config), ())
    assert (request.tables, request.share, request.repair, request.row_filter) == ((), Fraction(1, 30), False, None)
    assert backfill_form.readers(filled(config)) == [1, 2]


def test_what_is_typed_reaches_the_library(config: PipelineConfig) -> None:
    conf = {
        "other_tables": [" shop.orders "],
        "share": " 0.25 ",
        "repair": True,
        "row_filter": " id > 1 ",
        "readers": 3,
    }
    request = verify_form.request(config, filled(config, **conf), conf)
    assert (request.tables, request.share, request.repair) == (("shop.orders",), Fraction(1, 4), True)
    assert (request.row_filter, request.readers) == ("id > 1", 3)


@pytest.mark.parametrize("share", [1, 0.25])
def test_a_share_may_be_a_number_as_a_trigger_by_the_api_sends_it(config: PipelineConfig, share: float) -> None:
    assert verify_form.request(config, filled(config, share=share), ()).share == Fraction(share)


@pytest.mark.parametrize("share", ["2", "0", "1/0", "-1", "half", "", 2, 0, -1])
def test_a_share_that_is_none_is_refused_before_a_run_exists(config: PipelineConfig, share: str | float) -> None:
    with pytest.raises(ParamValidationError):
        filled(config, share=share)


def test_a_share_of_nothing_and_a_key_that_is_no_field_are_refused(config: PipelineConfig) -> None:
    answers = filled(config, share="0.0")
    with pytest.raises(VerifyFormInvalid, match=r"'table' is no field \(did you mean 'tables'\?\); `share` is above 0"):
        verify_form.request(config, answers, ["table"])
