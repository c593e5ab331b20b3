"""Nothing is green while something is wrong, as a new operator meets it under `airflow dags test`: the first run, a
table that parks, a form that names it, and what ends the park; each step is the one that the line before it says.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from sandbox.services.postgres import PostgresServer
from tests.airflow.captured_shop import FIRST_ORDERS, MORE_ORDERS, Shop, open_shop
from tests.support.airflow_home import REPOSITORY
from tests.support.remedies import Told
from tidemark.formats import layout
from tidemark.names import TableName
from tidemark.observe.health import LINE_CHARACTERS

pytestmark = pytest.mark.thorough

CAPTURE = ("preflight", "changes_waiting", "drain", "merge", "confirm")


@pytest.fixture
def shop(
    postgres: PostgresServer, new_metadata: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    with open_shop(postgres, new_metadata, tmp_path_factory) as opened:
        opened.sql(FIRST_ORDERS)
        yield opened


class Operator:
    """Who triggers DAGs, types commands, and reads what they say."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    def dag(self, what: str, *, conf: str = "", is_red: bool = False) -> str:
        form = ("--conf", conf) if conf else ()
        process = self.shop.airflow.run("dags", "test", f"shop_{what}", *form)
        assert (process.returncode != 0) is is_red, process.stdout[-6000:]
        return process.stdout

    def states(self, what: str) -> dict[str, str]:
        return self.shop.airflow.task_states(f"shop_{what}")[-1]

    def types(self, line: str) -> str:
        """A command that a message shows."""
        words = shlex.split(line)
        if words[:3] == ["airflow", "dags", "trigger"]:
            return self.dag(words[3].removeprefix("shop_"), conf=words[5] if len(words) > 4 else "")
        process = subprocess.run(
            [sys.executable, "-m", "tidemark", *words[1:]],
            env=self.shop.airflow.environment(),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        )
        return process.stdout + process.stderr

    def verdict(self, log: str) -> str:
        """The line with which `health` is red."""
        lines = re.findall(r"AirflowFailException: (shop: .*)", log)
        assert lines, log[-6000:]
        assert len(set(lines)) == 1
        assert len(lines[0]) <= LINE_CHARACTERS + len("shop: ")
        return str(lines[0])


@pytest.mark.walks("ReplayRefused", "ReplayFailed")
def test_no_run_is_green_from_the_first_lost_row_to_the_last_and_says_the_way_out(shop: Shop, told: Told) -> None:
    operator = Operator(shop)

    # The first run finds rows that are older than its slot: nothing went wrong, so it is not red.
    first = operator.dag("capture")
    assert operator.states("capture") == {**dict.fromkeys(CAPTURE, "success"), "health": "skipped"}
    assert 'Created slot "' in first
    assert "adopted" not in first
    assert shop.differences() != {}
    waiting = "shop: 3 tables need a backfill (shop.audit, shop.customers, shop.orders)"
    assert waiting in first
    way = re.search(r"To fill every table that needs it: (airflow dags trigger shop_backfill)$", first, re.MULTILINE)
    assert way is not None
    again = operator.dag("capture")
    assert operator.states("capture")["health"] == "skipped", "as long as it is so"
    assert waiting in again

    filled = operator.types(way[1])
    progress = re.findall(r"\] (\d+ %(?:, about [^:]+ left)?): shop\.\w+: \d+ rows? read", filled)
    assert "100 %" in progress, [line for line in filled.splitlines() if " %" in line]
    assert "A watermark window alone" not in filled
    idle = operator.dag("capture")
    assert operator.states("capture")["merge"] == "skipped"
    assert "shop: every table is exact" in idle
    assert shop.differences() == {}
    listed = operator.types("tidemark tables shop")
    for table in ("shop.audit", "shop.customers", "shop.orders"):
        assert re.search(rf"{re.escape(table)}\W+ok\b", listed), listed

    # Somebody moves the history of one table away.
    history = shop.file.parent.parent / "lake" / layout.history_table("shop", TableName.parse("shop.customers"))
    history.rename(history.with_name("elsewhere"))
    shop.sql(MORE_ORDERS)
    parked = operator.dag("capture", is_red=True)
    said = operator.verdict(parked)
    assert "shop.customers is parked since" in said
    assert "Mend that, then: tidemark unpark" in said
    for table in ("shop.orders", "shop.audit"):
        assert re.search(rf"{table}: history to \S+, \d+ appended; .* since it began", parked), "what merge did"
        assert re.search(rf"{table}: current to \S+, \d+ \w+", parked)
    assert set(shop.differences()) == {"shop.customers"}
    for _ in range(2):
        later = operator.dag("capture", is_red=True)
        assert operator.verdict(later) == said, "red until somebody does something, not once"
        assert "need a backfill" not in later, "a backfill of it could not begin"
    refused = operator.dag("backfill", conf='{"tables": ["shop.customers"]}', is_red=True)
    assert operator.states("backfill")["plan"] == "failed"
    assert "it is parked" in refused

    # `current` cannot be made anew from what is not there either.
    conf = '{"step": "rebuild", "tables": ["shop.customers", "shop.orders"]}'
    told.read(
        "ReplayRefused", operator.dag("replay", conf=conf.replace("orders", "ordres"), is_red=True), "did you mean"
    )
    failed = operator.dag("replay", conf=conf, is_red=True)
    told.read("ReplayFailed", failed, "shop.customers: ", "shop.orders as of")
    history.with_name("elsewhere").rename(history)
    rebuilt = operator.dag("replay", conf=conf)
    assert "shop.customers as of" in rebuilt

    way = re.search(r"(tidemark unpark \S+ shop\.customers)$", later, re.MULTILINE)
    assert way is not None
    operator.types(way[1])
    mended = operator.dag("capture")
    assert "shop: every table is exact" in mended
    assert shop.differences() == {}
