"""What goes out as metrics, by which names; and what OpenLineage would be told."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from airflow.sdk.observability import stats

from tests.support.airflow_home import REPOSITORY
from tidemark.config import PipelineConfig
from tidemark.ledger.observations.runs import Figures
from tidemark.names import TableName
from tidemark.observe.health import Health
from tidemark.observe.run_verdict import ExaminedRun
from tidemark_airflow import metrics
from tidemark_airflow.lineage import lineage_of

STATES = (
    "exact",
    "exact",
    "deferred",
    "parked",
    "needs a backfill",
    "being backfilled",
    "behind",
    "failed 2 runs",
    "paused",
)
EXAMINED = ExaminedRun(
    Health("shop", (), {f"s.t{number}": state for number, state in enumerate(STATES)}),
    Figures(
        "red", lag_s=1.5, lag_bytes=8, retained_bytes=9, unapplied_batches=2, unapplied_changes=7, tables={"exact": 2}
    ),
    changes=11,
)


class Backend:
    """What Airflow hands its metrics to."""

    def __init__(self) -> None:
        self.gauges: list[tuple[str, float, dict[str, str]]] = []

    def gauge(self, stat: str, value: float, tags: dict[str, str] | None = None, **_: Any) -> None:
        self.gauges.append((stat, value, tags or {}))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    made = Backend()
    module = __import__(stats.gauge.__module__, fromlist=["_backend"])
    monkeypatch.setattr(module, "_backend", made)
    return made


def test_each_gauge_goes_out_with_a_tag_and_with_a_name_of_its_own(backend: Backend) -> None:
    metrics.emit(EXAMINED)
    tagged = {stat: value for stat, value, tags in backend.gauges if tags == {"pipeline": "shop"}}
    plain = {stat: value for stat, value, tags in backend.gauges if not tags}
    assert tagged == {
        "tidemark.health": 2,
        "tidemark.lag_s": 1.5,
        "tidemark.lag_bytes": 8,
        "tidemark.wal_retained_bytes": 9,
        "tidemark.staged_changes": 11,
        "tidemark.unapplied_batches": 2,
        "tidemark.unapplied_changes": 7,
        "tidemark.tables": 9,
        "tidemark.tables_exact": 3,
        "tidemark.tables_parked": 1,
        "tidemark.tables_unfilled": 2,
        "tidemark.tables_behind": 2,
    }
    assert plain == {stat.replace("tidemark.", "tidemark.shop."): value for stat, value in tagged.items()}


def test_what_cannot_be_seen_is_not_sent(backend: Backend) -> None:
    metrics.emit(ExaminedRun(Health("shop", (), {}), Figures("red")))
    assert {stat for stat, _, _ in backend.gauges} == {"tidemark.health", "tidemark.shop.health"}


def test_the_documents_and_the_dashboard_name_every_gauge_and_no_other() -> None:
    gauges = list(metrics.values(EXAMINED))
    page = (REPOSITORY / "docs" / "operations.md").read_text().partition("## Metrics")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \| .+ \|$", page, re.MULTILINE) == gauges
    dashboard = json.loads((REPOSITORY / "docs" / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = [re.fullmatch(r'airflow_tidemark_(\w+)\{pipeline=~"\$pipeline"\}', one) for one in expressions]
    assert sorted(match[1] for match in named if match) == sorted(gauges)


@pytest.mark.parametrize(
    ("lake", "namespace", "prefix"),
    [("/data/lake", "file", "/data/lake/"), ("s3a://bucket/lake", "s3://bucket", "lake/")],
)
def test_a_merge_names_source_tables_and_delta_tables_and_no_secret(lake: str, namespace: str, prefix: str) -> None:
    config = PipelineConfig("shop", "c", "s", "p", True, (), lake, "l")
    source = "host=db.example port=5433 dbname=shop user=u password=hidden"
    lineage = lineage_of(config, source, [TableName("public", "orders")])
    assert lineage.inputs == (("postgres://db.example:5433", "shop.public.orders"),)
    assert lineage.outputs == (
        (namespace, f"{prefix}shop/history/public/orders"),
        (namespace, f"{prefix}shop/current/public/orders"),
    )
    assert "hidden" not in repr(lineage)
