"""The page as somebody sees it: in a real Chromium, logged in to a real Airflow, of five hundred tables.

`make page` plays this, and writes the pictures of docs/ where TIDEMARK_SCREENSHOTS names a folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running, wait_for
from tests.conftest import create_database
from tests.support import many_tables
from tests.support.airflow_home import FOREIGN_DAG, AirflowHome, postgres_connection, spark_connection
from tests.support.chromium import Browser, browser
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import open_ledger

pytestmark = pytest.mark.thorough

FRAME = "iframe[title=Tidemark]"
DRAWN = "document.querySelector('#tables tbody tr.row') !== null"


@dataclass(frozen=True)
class Site:
    airflow: AirflowHome
    ledger: str
    pictures: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.airflow.port}"

    def log_in(self, window: Browser, user: str) -> None:
        window.go(f"{self.url}/auth/logout")
        window.go(f"{self.url}/auth/login")
        window.wait("the login is there", "document.querySelector('input[name=username]') !== null")
        window.type("input[name=username]", user)
        window.type("input[name=password]", self.airflow.password)
        window.click("button[type=submit]")
        window.wait("somebody is logged in", "!location.pathname.startsWith('/auth')")

    def open(self, window: Browser, path: str = "/plugin/tidemark") -> None:
        """The page within Airflow's frame, drawn."""
        window.within(None)
        window.go(f"{self.url}{path}")
        window.wait("Airflow shows a frame", f"document.querySelector('{FRAME}') !== null")
        window.within(FRAME)
        window.wait("the tables are drawn", DRAWN)

    def state(self, table: str) -> str:
        with open_ledger(self.ledger, "shop") as book:
            row = tables.one(book, table)
        assert row is not None
        return row.life.merge

    def runs(self, dag: str) -> list[Any]:
        with psycopg.connect(self.airflow.metadata) as connection:
            rows = connection.execute("SELECT conf FROM dag_run WHERE dag_id = %s ORDER BY id", (dag,)).fetchall()
        return [conf for (conf,) in rows]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("page")
    with running(folder / "postgres", max_slot_wal_keep_size="256MB") as server:
        yield from _site(server, folder)


def _site(server: PostgresServer, folder: Path) -> Iterator[Site]:
    source, ledger, metadata = (create_database(server, name) for name in ("source", "ledger", "metadata"))
    many_tables.make(source, ledger)
    pipelines, dags = folder / "pipelines", folder / "dags"
    pipelines.mkdir()
    dags.mkdir()
    (pipelines / "shop.yaml").write_text("source: {connection: shop_source}\ntables: ['*.*']\nlake: /lake\n")
    (dags / "foreign.py").write_text(FOREIGN_DAG)
    (dags / "tidemark_pipelines.py").write_text((Path(__file__).parents[2] / "dags/tidemark_pipelines.py").read_text())
    airflow = AirflowHome(
        folder / "airflow",
        metadata,
        Path("../pipelines"),  # seen from Airflow's home: no picture shows where a test ran
        {
            "shop_source": postgres_connection(source),
            "tidemark_ledger": postgres_connection(ledger),
            "spark_default": spark_connection(),
        },
        {"AIRFLOW__CORE__DAGS_FOLDER": str(dags)},
        users={"admin": "admin", "vera": "viewer"},
    )
    airflow.migrate()
    parsed = airflow.run("dags", "reserialize")
    assert parsed.returncode == 0, parsed.stdout[-4000:]
    pictures = Path(os.environ.get("TIDEMARK_SCREENSHOTS") or folder)
    with airflow.services("api-server"):
        airflow.wait_until_healthy("metadatabase")
        _play_runs(airflow)
        yield Site(airflow, ledger, pictures)


def _play_runs(airflow: AirflowHome) -> None:
    """Five runs of the capture, the third of which failed in its merge; nobody schedules them here."""
    for _ in range(5):
        airflow.send("POST", "/api/v2/dags/shop_capture/dagRuns", {"logical_date": None})
    took = {"preflight": 3, "changes_waiting": 1, "drain": 9, "merge": 34, "confirm": 2, "health": 1}
    with psycopg.connect(airflow.metadata) as connection:
        runs = connection.execute("SELECT id, run_id FROM dag_run WHERE dag_id = 'shop_capture' ORDER BY id").fetchall()
        for number, (run, run_id) in enumerate(runs):
            at = f"now() - interval '{5 * (len(runs) - number)} minutes'"
            state = "failed" if number == 2 else "success"
            connection.execute(
                f"UPDATE dag_run SET state = '{state}', run_after = {at}, start_date = {at}, "
                f"end_date = {at} + interval '55 s' WHERE id = %s".encode(),
                (run,),
            )
            passed = 0
            for task, seconds in took.items():
                failed = number == 2 and task == "merge"
                connection.execute(
                    f"UPDATE task_instance SET state = %s, start_date = {at} + interval '{passed} s', "
                    f"end_date = {at} + interval '{passed + seconds} s', duration = {seconds} "
                    "WHERE run_id = %s AND task_id = %s".encode(),
                    ("failed" if failed else "success", run_id, task),
                )
                passed += seconds
                if failed:
                    connection.execute(
                        "UPDATE task_instance SET state = 'upstream_failed' WHERE run_id = %s AND state IS NULL",
                        (run_id,),
                    )
                    break


@pytest.fixture(scope="module")
def window(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as one:
        one.resize(1440, 1000)
        site.log_in(one, "admin")
        yield one


@pytest.fixture
def page(site: Site, window: Browser) -> Browser:
    """The page, as it is when somebody opens it; what its console says is an error of the test."""
    window.resize(1440, 1000)
    window.complaints()
    site.open(window)
    return window


def test_the_page_stands_in_the_navigation_and_says_first_what_needs_somebody(site: Site, window: Browser) -> None:
    window.within(None)
    window.go(site.url)
    window.wait(
        "Tidemark is in the navigation",
        "[...document.querySelectorAll('nav a, a')].some(a => a.pathname === '/plugin/tidemark')",
    )
    site.open(window)
    heads = window.run(
        "return [...document.querySelectorAll('.concern .title')].map(one => one.innerText.replace(/\\s+/g, ' '))"
    )
    assert heads[0].startswith("parked shop.orders since")
    assert heads[1].startswith("differs people.customers")
    assert 'column "total" changed' in window.run("return document.querySelector('.concern p').innerText")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 800])
def test_it_fits_its_window_and_follows_airflows_light_and_dark(
    site: Site, page: Browser, theme: str, width: int
) -> None:
    page.within(None)
    page.run("localStorage.setItem('theme', arguments[0])", theme)
    site.open(page)
    page.resize(width, 1000)
    page.run("document.querySelector('#plots').scrollIntoView()")
    page.wait("the plots are drawn", "document.querySelectorAll('.plot canvas').length === 4")
    page.wait("the runs are drawn", "document.querySelectorAll('#runs .stages').length >= 5")
    page.run("window.scrollTo(0, 0)")
    assert page.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    background = page.run("return getComputedStyle(document.documentElement).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(9, 9, 11)"}[theme]
    page.screenshot(site.pictures / f"page-{theme}-{width}.png")
    assert page.complaints() == []


def test_a_change_of_theme_is_followed_at_once(site: Site, page: Browser) -> None:
    page.within(None)
    page.run("document.documentElement.classList.remove('light'); document.documentElement.classList.add('dark')")
    page.within(FRAME)
    page.wait("the page is dark", "document.documentElement.classList.contains('dark')")
    page.within(None)
    page.run("document.documentElement.classList.remove('dark'); document.documentElement.classList.add('light')")
    page.within(FRAME)
    page.wait("the page is light", "!document.documentElement.classList.contains('dark')")


def names(page: Browser) -> list[str]:
    return list(page.run("return [...document.querySelectorAll('tr.row td.name')].map(one => one.innerText)"))


def test_five_hundred_tables_are_searched_sorted_and_turned(page: Browser) -> None:
    assert len(names(page)) == 50
    assert names(page)[:2] == ["people.customers", "billing.invoices_2022"]
    page.type("#search", "_2024")
    page.wait("fewer tables are shown", "document.querySelector('.pages').innerText.includes('of 100')")
    assert all(name.endswith("_2024") for name in names(page))
    page.click("#next")
    assert "51–100 of 100" in page.run("return document.querySelector('.pages').innerText")
    page.click("#sort-rows")
    rows = page.run("return document.querySelector('th[aria-sort]').innerText")
    assert rows.startswith("Rows")
    page.run("const box = document.querySelector('#search'); box.value = ''; box.dispatchEvent(new Event('input'))")
    page.click("#state-parked")
    assert names(page) == ["shop.orders"]
    assert page.complaints() == []


def test_what_was_put_aside_is_listed_apart(page: Browser) -> None:
    said = page.run("return document.querySelector('#put-aside').innerText")
    for fact in ("shop.baskets", "all of it below 0/1A2B3C4", "maintenance removes it from "):
        assert fact in said
    assert page.run("return document.querySelector('#tables').innerText.includes('shop.baskets')") is False


def test_a_table_whose_name_is_markup_is_shown_and_does_nothing(page: Browser) -> None:
    page.type("#search", "script")
    page.wait("it is found", "document.querySelectorAll('tr.row td.name').length === 1")
    assert names(page) == [f"shop.{many_tables.SCRIPT}"]
    page.click("tr.row")
    page.wait("its details are there", "document.querySelector('.details') !== null")
    page.click("tr.detail button[data-action=backfill]")
    page.wait("the form is there", "document.querySelector('dialog textarea[name=tables]') !== null")
    assert (
        page.run("return document.querySelector('dialog textarea[name=tables]').value") == f"shop.{many_tables.SCRIPT}"
    )
    assert page.run("return window.hacked === undefined && document.querySelectorAll('#page script').length === 0")


def test_a_table_is_opened_and_says_all_that_is_known_of_it(site: Site, page: Browser) -> None:
    page.type("#search", "shop.orders")
    page.wait("it is found", "document.querySelector('td.name').innerText === 'shop.orders'")
    page.click("tr.row")
    page.wait("its details are there", "document.querySelector('.details') !== null")
    said = page.run("return document.querySelector('.details').innerText")
    for fact in ("Parked: SchemaNotFollowed", "total (9)", 'column "currency" was added', " rows, ", "2 of 2 proven"):
        assert fact in said
    page.run("document.querySelector('#tables').scrollIntoView()")
    page.screenshot(site.pictures / "page-table.png")


def test_pause_asks_twice_and_acts_once(site: Site, page: Browser) -> None:
    page.type("#search", "stock.visits")
    page.wait("it is found", "document.querySelector('td.name').innerText === 'stock.visits'")
    page.click("tr.row")
    page.wait("its details are there", "document.querySelector('.details') !== null")
    page.click("tr.detail button[data-action=pause]")
    assert site.state("stock.visits") == "merging"
    page.click("tr.detail button[data-action=pause]")
    wait_for("it is paused", lambda: site.state("stock.visits") == "paused")
    page.wait("the page says so", "document.querySelector('#toasts').innerText.includes('is paused')")
    page.wait("it can be resumed", "document.querySelector('tr.detail button[data-action=resume]') !== null")


def test_the_form_of_the_backfill_is_filled_in_and_airflow_checks_it(site: Site, page: Browser) -> None:
    page.click(".concern button[data-action=backfill].main")
    page.wait("the form is there", "document.querySelector('dialog textarea[name=tables]') !== null")
    assert page.run("return document.querySelector('dialog textarea[name=tables]').value") == "stock.products"
    page.screenshot(site.pictures / "page-form.png")
    offered = page.run("return [...document.querySelectorAll('dialog #offered option')].map((one) => one.value)")
    assert len(offered) == len(set(offered)) == len(many_tables.names())
    choose = "const add = document.querySelector('dialog input[name=offered]'); add.value = '{}'; "
    for name in ("shop.orders", "shop.orders", "shop.nothing"):
        page.run(choose.format(name) + "add.dispatchEvent(new Event('input'))")
    page.run("document.querySelector('dialog input[name=readers]').removeAttribute('max')")
    page.run("document.querySelector('dialog input[name=readers]').value = '99'")
    page.click("dialog button[type=submit]")
    page.wait("Airflow refuses it", "!document.querySelector('dialog .said:not(.warning)').hidden")
    assert site.runs("shop_backfill") == []
    page.run("document.querySelector('dialog input[name=readers]').value = '3'")
    page.click("dialog button[type=submit]")
    page.wait("it is triggered", "document.querySelector('#toasts').innerText.includes('Triggered')")
    assert site.runs("shop_backfill") == [{"tables": ["stock.products", "shop.orders"], "readers": 3}]


def test_the_tab_of_a_dag_shows_its_pipeline_and_says_of_another_that_it_is_none(site: Site, page: Browser) -> None:
    site.open(page, "/dags/shop_verify/plugin/tidemark-pipeline")
    assert page.run("return document.querySelector('h1').innerText") == "shop"
    page.within(None)
    page.go(f"{site.url}/dags/foreign/plugin/tidemark-pipeline")
    page.wait("Airflow shows a frame", f"document.querySelector('{FRAME}') !== null")
    page.within(FRAME)
    page.wait("it says so", "document.body.innerText.includes('foreign is not one of Tidemark')")


def test_a_link_leads_out_of_the_frame_into_airflow(site: Site, page: Browser) -> None:
    page.click("header nav a")
    page.within(None)
    page.wait("Airflow shows the DAG", "location.pathname.startsWith('/dags/shop_capture')")


def test_a_viewer_sees_all_of_it_and_may_do_nothing(site: Site, tmp_path: Path) -> None:
    with browser(tmp_path) as window:
        window.resize(1440, 1000)
        site.log_in(window, "vera")
        site.open(window)
        assert window.run("return [...document.querySelectorAll('.concern button')].every(one => one.disabled)")
        assert "right to trigger" in window.run("return document.querySelector('.concern button').title")
