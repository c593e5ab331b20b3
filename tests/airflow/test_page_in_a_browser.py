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
from sandbox.setup import axe
from tests.conftest import create_database
from tests.support import many_tables
from tests.support.airflow_home import FOREIGN_DAG, AirflowHome, postgres_connection, spark_connection
from tests.support.chromium import Browser, browser
from tests.support.pipeline import SALT, Pipeline, pipeline_config
from tidemark.config import TableRule
from tidemark.ledger.captured import merge_states, tables
from tidemark.ledger.connection import open_ledger
from tidemark.ledger.staged import positions

pytestmark = pytest.mark.thorough

# Keys, as W3C's WebDriver names them.
CONTROL, ENTER, ESCAPE = "\ue009", "\ue007", "\ue00c"
FRAME = "iframe[title=Tidemark]"
DRAWN = "document.querySelector('#tables tbody tr') !== null"
ALL_READ = "document.querySelectorAll('#pipelines .facts').length === 4"
AXE = Path(__file__).parents[2] / axe.SCRIPT


@dataclass(frozen=True)
class Site:
    airflow: AirflowHome
    ledger: str
    begun: Pipeline
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
        if path == "/plugin/tidemark":
            window.wait("all are read", ALL_READ)
            window.click("#pipeline-shop")
        window.wait("the tables are drawn", DRAWN)

    def open_new(self, window: Browser, pipeline: str = "fresh") -> None:
        """The page of a pipeline that never ran, or that read changes and no rows so far."""
        window.within(None)
        window.go(f"{self.url}/tidemark/?pipeline={pipeline}")
        window.wait("the first steps are drawn", "document.querySelector('#first-steps') !== null")

    def is_paused(self, dag: str) -> bool:
        with psycopg.connect(self.airflow.metadata) as connection:
            row = connection.execute("SELECT is_paused FROM dag WHERE dag_id = %s", (dag,)).fetchone()
        assert row is not None
        return bool(row[0])

    def pause(self, dag: str, *, paused: bool) -> None:
        with psycopg.connect(self.airflow.metadata) as connection:
            connection.execute("UPDATE dag SET is_paused = %s WHERE dag_id LIKE %s", (paused, dag))

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
    source, ledger, metadata, empty, people, begun_ledger = (
        create_database(server, name) for name in ("source", "ledger", "metadata", "empty", "people", "begun")
    )
    many_tables.make(source, ledger)
    begun = _begin(people, begun_ledger, folder)
    pipelines, dags = folder / "pipelines", folder / "dags"
    pipelines.mkdir()
    dags.mkdir()
    (pipelines / "shop.yaml").write_text("source: {connection: shop_source}\ntables: ['*.*']\nlake: /lake\n")
    (pipelines / "fresh.yaml").write_text(
        "source: {connection: shop_source}\nledger: {connection: fresh_ledger}\ntables: ['*.*']\nlake: /fresh\n"
    )
    (pipelines / "begun.yaml").write_text(
        "source: {connection: begun_source}\nledger: {connection: begun_ledger}\nmask_salt_connection: salt\n"
        f"lake: {begun.config.lake}\ntables:\n  - {{name: public.people, mask: {{email: sha256}}}}\n  - public.pets\n"
    )
    (pipelines / "away.yaml").write_text(
        "source: {connection: nowhere}\nledger: {connection: nowhere}\ntables: [a.b]\nlake: /away\n"
    )
    (dags / "foreign.py").write_text(FOREIGN_DAG)
    (dags / "tidemark_pipelines.py").write_text((Path(__file__).parents[2] / "dags/tidemark_pipelines.py").read_text())
    airflow = AirflowHome(
        folder / "airflow",
        metadata,
        Path("../pipelines"),  # seen from Airflow's home: no picture shows where a test ran
        {
            "shop_source": postgres_connection(source),
            "tidemark_ledger": postgres_connection(ledger),
            "fresh_ledger": postgres_connection(empty),
            "begun_source": postgres_connection(people),
            "begun_ledger": postgres_connection(begun_ledger),
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
        site = Site(airflow, ledger, begun, pictures)
        site.pause("shop_%", paused=False)
        yield site


def _begin(source: str, ledger: str, folder: Path) -> Pipeline:
    """A pipeline that read changes of two tables with rows, and no backfill filled them."""
    rules = (TableRule("public.people", mask={"email": "sha256"}), TableRule("public.pets"))
    pipeline = Pipeline(pipeline_config("begun", folder / "begun", rules), source, ledger)
    with psycopg.connect(source, autocommit=True) as connection:
        for table in ("people", "pets"):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, name text, email text)".encode())
            connection.execute(f"INSERT INTO {table} SELECT n, 'old', 'old@example.org' FROM generate_series(1, 9) n")
        pipeline.capture()
        for number in range(10, 25):
            connection.execute("INSERT INTO people VALUES (%s, %s, 'secret@example.org')", (number, f"new {number}"))
        connection.execute("DELETE FROM people WHERE id = 10")
    pipeline.drain(salt=SALT)
    with pipeline.ledger_connection() as book:
        positions.rise(book, 1, {"public.people": (pipeline.staged_lsn(), pipeline.staged_lsn())})
    return pipeline


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
        one.run("localStorage.setItem('theme', 'light')")
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


def test_all_pipelines_are_shown_first_the_worst_on_top(site: Site, window: Browser) -> None:
    window.within(None)
    window.go(f"{site.url}/tidemark/")
    window.wait("all are read", ALL_READ)
    order = window.run("return [...document.querySelectorAll('#pipelines button')].map(one => one.innerText)")
    assert (set(order[:2]), set(order[2:])) == ({"shop", "away"}, {"fresh", "begun"}), "two need somebody, two are new"
    said = window.run("return document.querySelector('#pipelines').innerText")
    for fact in ("needs somebody", "new", "500 tables", "cannot be seen"):
        assert fact in said
    begun = window.run("return document.querySelector('#pipeline-begun').closest('.card').innerText")
    assert "2 tables" in begun
    assert "rows" not in begun, "nobody has counted them yet"
    window.screenshot(site.pictures / "page-overview.png")
    window.click("#pipeline-shop")
    window.wait("the tables are drawn", DRAWN)
    window.run("history.back()")
    window.wait("all are shown again", "document.querySelector('#pipelines') !== null")


def test_the_picture_has_rates_seconds_the_gauge_and_the_seal(page: Browser) -> None:
    said = page.run("return document.querySelector('#flow').innerText.replace(/\\s+/g, ' ')")
    for fact in (
        "changes/min",
        "to read",
        "to merge",
        "of WAL kept for Tidemark",
        "the server's limit",
        "proven equal",
    ):
        assert fact in said
    assert page.run("return document.querySelector('.seal svg').getAttribute('aria-label')").endswith(
        " of 500 tables proven equal"
    )
    assert "of its limit" in page.run("return document.querySelector('.gauge svg').getAttribute('aria-label')")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 800, 400])
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


def test_five_hundred_tables_are_grouped_searched_sorted_and_turned(page: Browser) -> None:
    groups = page.run("return [...document.querySelectorAll('tr.group button')].map(one => one.innerText)")
    assert groups == ["people", "shop", "stock", "billing", "shipping"], "by the hardest trouble of each"
    page.click("tr.group")
    page.wait("the first fifty of them are there", "document.querySelectorAll('tr.row').length === 50")
    assert {name.partition(".")[0] for name in names(page)} == {"people"}
    page.click("#grouped")
    assert len(names(page)) == 50
    assert names(page)[:2] == ["people.customers", "stock.products"]
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
    name = f'shop."{many_tables.SCRIPT}"'
    assert names(page) == [name]
    page.click("tr.row")
    page.wait("its details are there", "document.querySelector('.details') !== null")
    page.click("tr.detail button[data-action=backfill]")
    page.wait("the form is there", "document.querySelector('dialog textarea[name=tables]') !== null")
    assert page.run("return document.querySelector('dialog textarea[name=tables]').value") == name
    assert page.run("return window.hacked === undefined && document.querySelectorAll('#page script').length === 0")


def test_a_table_is_opened_and_says_all_that_is_known_of_it(site: Site, page: Browser) -> None:
    page.type("#search", "shop.orders")
    page.wait("it is found", "document.querySelector('td.name').innerText === 'shop.orders'")
    page.click("tr.row")
    page.wait("its details are there", "document.querySelector('.details') !== null")
    said = page.run("return document.querySelector('.details').textContent")
    for fact in (
        *("Parked: SchemaNotFollowed", "9 values did not fit", 'column "currency" was added', "2 of 2 proven"),
        *("/lake/shop/current/shop/orders", "spark.read", "changes: driver – 50 changes in 1 batch", "Last changes"),
    ):
        assert fact in said
    page.run("document.documentElement.classList.add('dark'); document.querySelector('#tables').scrollIntoView()")
    page.screenshot(site.pictures / "page-dark-table.png")


def test_pause_says_what_it_will_do_and_acts_when_it_is_confirmed(site: Site, page: Browser) -> None:
    page.type("#search", "stock.visits")
    page.wait("it is found", "document.querySelector('td.name').innerText === 'stock.visits'")
    page.click("tr.row")
    page.wait("its details are there", "document.querySelector('.details') !== null")
    page.click("tr.detail button[data-action=pause]")
    page.wait("it says what it will do", "document.querySelector('dialog')?.innerText.includes('nothing is lost')")
    assert site.state("stock.visits") == "merging"
    page.click("dialog button[data-action=confirm]")
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
    page.wait("it is started", "document.querySelector('#toasts').innerText.includes('Started')")
    assert site.runs("shop_backfill") == [{"tables": ["stock.products", "shop.orders"], "readers": 3}]


def test_a_paused_dag_is_said_and_un_paused(site: Site, page: Browser) -> None:
    assert page.run("return document.querySelector('#paused') === null")
    site.pause("shop_capture", paused=True)
    page.click("#refresh")
    page.click("#paused button[data-action=unpause]")
    page.wait("it says what it will do", "document.querySelector('dialog')?.innerText.includes('schedules')")
    assert site.is_paused("shop_capture")
    page.click("dialog button[data-action=confirm]")
    wait_for("it is un-paused", lambda: not site.is_paused("shop_capture"))
    page.wait("the page says nothing of it any more", "document.querySelector('#paused') === null")


def test_values_that_do_not_fit_are_answered_with_the_lines_of_the_pipeline_file(page: Browser) -> None:
    page.click(".concern button[data-action=as-text]")
    page.wait("the lines are there", "document.querySelector('dialog pre') !== null")
    assert page.run("return document.querySelector('dialog pre').innerText") == (
        "  - {name: shop.orders, target: {total: text}}"
    )
    said = page.run("return document.querySelector('dialog').innerText")
    for fact in ("../pipelines/shop.yaml", "total (9 values)", "builds the table anew"):
        assert fact in said
    page.click("dialog button[data-action=copy]")
    page.wait("it says so", "document.querySelector('dialog button[data-action=copy]').innerText !== 'Copy'")


def test_who_may_run_the_capture_sees_the_last_changes_of_a_table(page: Browser) -> None:
    page.type("#search", "shop.orders")
    page.click("#row-shop\\.orders")
    page.click("tr.detail button[data-action=changes]")
    page.wait("it answers", "document.querySelector('.details').innerText.includes('None is staged any more')")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 400])
def test_a_new_pipeline_is_amber_with_one_button_for_the_next_step(
    site: Site, window: Browser, theme: str, width: int
) -> None:
    window.resize(width, 1000)
    window.run("localStorage.setItem('theme', arguments[0])", theme)
    window.complaints()
    site.open_new(window)
    steps = window.run("return [...document.querySelectorAll('.steps li')].map(one => [one.className, one.innerText])")
    assert [kind for kind, _ in steps] == ["done", "next", "", "", ""]
    assert window.run("return document.querySelector('h1 + .pill').className") == "pill warning"
    buttons = window.run("return [...document.querySelectorAll('#first-steps button')].map(one => one.innerText)")
    assert buttons == ["Start fresh_capture…"]
    assert window.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    window.screenshot(site.pictures / f"page-new-{theme}-{width}.png")
    assert window.complaints() == []


def broken_rules(window: Browser) -> list[Any]:
    """What axe-core finds in the page as it is: rule, gravity, and the elements."""
    window.run(AXE.read_text() + "; window.axe = axe;")
    return list(
        window.run(
            "return axe.run(document).then(found => found.violations.map(one => "
            "[one.id, one.impact, one.nodes.slice(0, 3).map(node => node.html.slice(0, 200))]))"
        )
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 400])
def test_contrast_names_and_keyboard_pass_axe(site: Site, window: Browser, theme: str, width: int) -> None:
    window.resize(width, 1000)
    site.open_new(window)
    window.run("localStorage.setItem('theme', arguments[0])", theme)
    site.open_new(window)
    assert broken_rules(window) == []
    window.click("#all")
    window.wait("all are read", ALL_READ)
    assert broken_rules(window) == []
    window.click("#pipeline-shop")
    window.wait("the tables are drawn", DRAWN)
    assert broken_rules(window) == []
    window.type("#search", "shop.orders")
    window.click("#row-shop\\.orders")
    window.wait("its details are there", "document.querySelector('.details .grid') !== null")
    assert broken_rules(window) == []
    window.click("tr.detail button[data-action=backfill]")
    window.wait("the form is there", "document.querySelector('dialog textarea[name=tables]') !== null")
    assert broken_rules(window) == []


def test_a_table_is_opened_and_a_dialog_closed_by_the_keyboard_alone(page: Browser) -> None:
    page.type("#search", "shop.orders")
    page.wait("it is found", "document.querySelectorAll('tr.row').length === 5")
    page.run("document.querySelector('#row-shop\\\\.orders').focus()")
    page.type("#row-shop\\.orders", ENTER)
    page.wait("its details are there", "document.querySelector('.details .grid') !== null")
    assert page.run("return document.activeElement.id") == "row-shop.orders", "the focus stays where it was"
    page.run("document.querySelector('tr.detail button[data-action=pause], tr.detail button').focus()")
    page.type("tr.detail button[data-action=backfill]", ENTER)
    page.wait("the form is there", "document.querySelector('dialog textarea[name=tables]') !== null")
    page.type("dialog textarea[name=tables]", ESCAPE)
    page.wait("it is closed", "document.querySelector('dialog') === null")


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


def open_table(page: Browser, table: str) -> None:
    page.type("#search", table)
    page.wait("it is found", "document.querySelector('td.name')?.innerText === arguments[0]", table)
    page.click("tr.row")
    page.wait("its details are there", "document.querySelector('.details .grid') !== null")


def confirm(page: Browser, sentence: str) -> None:
    """What the dialog says first, and its button."""
    page.wait("it says what it will do", "document.querySelector('dialog')?.innerText.includes(arguments[0])", sentence)
    page.click("dialog button[data-action=confirm]")


def test_a_run_is_started_once_it_is_confirmed(site: Site, page: Browser) -> None:
    before = len(site.runs("shop_capture"))
    page.click("header button[data-action=run]")
    page.wait("it asks first", "document.querySelector('dialog') !== null")
    page.click("dialog .foot button:first-child")
    page.wait("it is closed", "document.querySelector('dialog') === null")
    assert len(site.runs("shop_capture")) == before
    page.click("header button[data-action=run]")
    confirm(page, "Starts one run of shop_capture")
    page.wait("it is started", "document.querySelector('#toasts').innerText.includes('Started')")
    assert len(site.runs("shop_capture")) == before + 1
    page.click("#toasts a")
    page.within(None)
    page.wait("its run is shown", "location.pathname.startsWith('/dags/shop_capture/runs/')")


def test_a_parked_table_is_unparked(site: Site, page: Browser) -> None:
    page.click(".concern button[data-action=unpark]")
    confirm(page, "tries again to apply what is staged of shop.orders, in order: 3,000 changes")
    wait_for("it is merged again", lambda: site.state("shop.orders") == "merging")
    page.wait("nothing is parked", "document.querySelector('#state-parked') === null")
    with open_ledger(site.ledger, "shop") as book, book.transaction():
        tables.lock(book, [many_tables.PARKED])
        merge_states.park(book, many_tables.PARKED, many_tables.NOT_FOLLOWED)


def test_a_paused_table_is_resumed(site: Site, page: Browser) -> None:
    open_table(page, "shop.prices")
    page.click("tr.detail button[data-action=resume]")
    confirm(page, "applies what was staged of shop.prices meanwhile")
    wait_for("it is merged again", lambda: site.state("shop.prices") == "merging")
    page.wait("it can be paused", "document.querySelector('tr.detail button[data-action=pause]') !== null")
    with open_ledger(site.ledger, "shop") as book:
        merge_states.pause(book, many_tables.PAUSED, "anna")


def test_what_verify_found_is_repaired(site: Site, page: Browser) -> None:
    page.click(".concern button[data-action=verify].main")
    page.wait("the form is there", "document.querySelector('dialog textarea[name=tables]') !== null")
    assert page.run("return document.querySelector('dialog textarea[name=tables]').value") == "people.customers"
    assert page.run("return document.querySelector('dialog input[name=repair]').checked")
    page.screenshot(site.pictures / "page-repair.png")
    page.click("dialog button[type=submit]")
    page.wait("it is started", "document.querySelector('#toasts').innerText.includes('Started')")
    assert site.runs("shop_verify") == [{"tables": ["people.customers"], "share": 1, "repair": True}]


def test_a_replay_is_started_by_its_form_as_it_is(site: Site, page: Browser) -> None:
    open_table(page, "shop.orders")
    page.click("tr.detail button[data-action=replay]")
    page.wait("the form is there", "document.querySelector('dialog select[name=step]') !== null")
    page.screenshot(site.pictures / "page-replay.png")
    page.click("dialog button[type=submit]")
    page.wait("it is started", "document.querySelector('#toasts').innerText.includes('Started')")
    assert site.runs("shop_replay") == [{"tables": ["shop.orders"]}]
    page.wait("its run is on the page", "document.querySelector('#runs').innerText.includes('replay')")


def test_paths_and_snippets_are_copied(page: Browser) -> None:
    open_table(page, "shop.orders")
    page.click(".details details summary")
    snippets = page.run("return [...document.querySelectorAll('.details details pre')].map(one => one.innerText)")
    path = "/lake/shop/current/shop/orders"
    assert snippets == [
        f'spark.read.format("delta").load("{path}")',
        f"SELECT * FROM delta_scan('{path}') LIMIT 100",
        f'import polars\n\npolars.scan_delta("{path}")',
    ]
    page.click(".details .copied button")
    page.wait("it says so", "document.querySelector('.details .copied button').innerText === 'Copied'")
    page.run("document.querySelector('#search').value = ''")
    page.type("#search", f"{CONTROL}v{CONTROL}")
    assert page.run("return document.querySelector('#search').value") == path


def test_definitions_are_a_diff_and_a_merge_leads_to_its_log(site: Site, page: Browser) -> None:
    with psycopg.connect(site.airflow.metadata) as connection:
        row = connection.execute("SELECT max(run_id) FROM dag_run WHERE dag_id = 'shop_capture'").fetchone()
    assert row is not None
    with open_ledger(site.ledger, "shop") as book:
        book.execute("UPDATE tidemark.plans SET run_id = %s WHERE pipeline = 'shop'", (f"shop_capture/{row[0]}",))
    open_table(page, "shop.orders")
    lines = page.run(
        "return [...document.querySelectorAll('.details .diff')].map(one => [one.className, one.innerText])"
    )
    assert lines == [["diff added", '+\ncolumn "currency" was added']]
    page.click(".details a[href*='/tasks/merge']")
    page.within(None)
    page.wait("Airflow shows the task", "location.pathname.endsWith('/tasks/merge')")
    page.wait("of that run", "decodeURIComponent(location.pathname).includes(arguments[0])", row[0])


def test_the_next_step_of_a_new_pipeline_starts_its_capture(site: Site, window: Browser) -> None:
    site.open_new(window)
    assert site.is_paused("fresh_capture")
    window.click("button[data-action=first-capture]")
    confirm(window, "Un-pauses fresh_capture, so that it runs by its schedule, and starts a run now.")
    wait_for("it is un-paused", lambda: not site.is_paused("fresh_capture"))
    wait_for("a run is started", lambda: site.runs("fresh_capture") == [{}])
    site.pause("fresh_capture", paused=True)


@pytest.mark.parametrize("width", [1440, 400])
def test_every_table_with_rows_is_filled_by_one_button(site: Site, window: Browser, width: int) -> None:
    window.resize(width, 1000)
    site.open_new(window, "begun")
    window.wait("its tables are drawn", "document.querySelectorAll('tr.row').length === 2")
    window.screenshot(site.pictures / f"page-begun-{width}.png")
    if width < 1440:
        assert window.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        return
    assert window.run("return document.querySelector('#first-steps button').innerText") == "Backfill all 2…"
    assert "airflow dags" not in window.run("return document.querySelector('#first-steps').innerText")
    assert window.run("return document.querySelector('#concerns') === null"), "the step says it already"
    window.click("#first-steps button")
    window.wait("the form is there", "document.querySelector('dialog textarea[name=tables]') !== null")
    window.click("dialog button[type=submit]")
    wait_for("a run is started", lambda: site.runs("begun_backfill") == [{}])


def test_the_last_ten_changes_are_shown_as_they_are_masked(site: Site, window: Browser) -> None:
    window.resize(1440, 1000)
    site.open_new(window, "begun")
    window.click("#row-public\\.people")
    window.wait("its details are there", "document.querySelector('.details .grid') !== null")
    window.click("tr.detail button[data-action=changes]")
    rows = "document.querySelectorAll('[aria-label^=\"Change, Committed\"] tbody tr')"
    window.wait("they are there", f"{rows}.length === 10")
    first, second = window.run(f"return [...{rows}].slice(0, 2).map(one => one.innerText.split('\\t'))")
    assert (first[0], first[3]) == ("delete", "10"), "the newest on top"
    assert (second[0], second[3:5]) == ("insert", ["24", "new 24"])
    assert len(second[5]) == 64, "a hash of the e-mail address"
    assert "secret@" not in window.run("return document.documentElement.innerHTML")
    window.run("document.querySelector('tr.detail button[data-action=changes]').scrollIntoView()")
    window.screenshot(site.pictures / "page-changes.png")
    with psycopg.connect(site.airflow.metadata) as connection:
        noted = connection.execute("SELECT owner FROM log WHERE event = 'tidemark_changes'").fetchall()
    assert ("admin",) in noted


def test_a_viewer_sees_all_of_it_and_may_do_nothing(site: Site, tmp_path: Path) -> None:
    with browser(tmp_path) as window:
        window.resize(1440, 1000)
        site.log_in(window, "vera")
        site.open(window)
        acting = "document.querySelectorAll('.concern .acts button:not([data-action=as-text])')"
        assert window.run(f"return [...{acting}].every(one => one.disabled)")
        assert "right to trigger" in window.run("return document.querySelector('.concern button').title")
