"""The page's answers, of a real API server of Airflow's: who may read, who may act, and what is in the audit log."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer
from tests.conftest import create_database, drop_database
from tests.support import many_tables
from tests.support.airflow_home import AirflowHome, postgres_connection, spark_connection
from tidemark.ledger.captured import tables
from tidemark.ledger.connection import open_ledger
from tidemark.lsn import Lsn

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# A name that would be SQL or markup, were it ever taken for either.
EVIL = """shop."orders'; DROP TABLE tidemark.tables; --<script>"""


@dataclass(frozen=True)
class Site:
    """An API server, and what it stands on; `tokens` are those of its users."""

    airflow: AirflowHome
    ledger: str
    tokens: dict[str, str]

    def ask(
        self, path: str, user: str | None = "admin", body: Any = None, cookie: bool = False, **headers: str
    ) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.airflow.port}{path}", data)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if user is not None and cookie:
            request.add_header("Cookie", f"_token={self.tokens[user]}")
        elif user is not None:
            request.add_header("Authorization", f"Bearer {self.tokens[user]}")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with _DIRECT.open(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text.startswith(b"{") else text.decode()
        except urllib.error.HTTPError as refused:
            text = refused.read()
            return refused.code, json.loads(text) if text.startswith(b"{") else text.decode()

    def act(
        self, action: str, table: str, user: str = "admin", dag: str = "shop_capture", **more: Any
    ) -> tuple[int, Any]:
        return self.ask(f"/tidemark/api/dags/{dag}/{action}", user, {"table": table}, **more)

    def state(self, table: str) -> str:
        with open_ledger(self.ledger, "shop") as book:
            row = tables.one(book, table)
        assert row is not None
        return row.life.merge


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@pytest.fixture(scope="module")
def site(
    postgres: PostgresServer, new_metadata: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    source, ledger, metadata = create_database(postgres, "source"), create_database(postgres, "ledger"), new_metadata()
    empty = create_database(postgres, "ledger")
    many_tables.make(source, ledger)
    folder = tmp_path_factory.mktemp("page")
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    (pipelines / "shop.yaml").write_text("source: {connection: shop_source}\ntables: ['*.*']\nlake: ../lake\n")
    (pipelines / "away.yaml").write_text(
        "source: {connection: nowhere}\nledger: {connection: nowhere}\ntables: [a.b]\nlake: ../lake\n"
    )
    (pipelines / "fresh.yaml").write_text(
        "source: {connection: shop_source}\nledger: {connection: fresh_ledger}\ntables: ['*.*']\nlake: ../fresh\n"
    )
    airflow = AirflowHome(
        folder / "airflow",
        metadata,
        pipelines,
        {
            "shop_source": postgres_connection(source),
            "tidemark_ledger": postgres_connection(ledger),
            "fresh_ledger": postgres_connection(empty),
            "spark_default": spark_connection(),
        },
        users={"admin": "admin", "vera": "viewer", "uma": "user", "nora": ""},
    )
    airflow.folder.mkdir()
    with airflow.services("api-server"):
        airflow.wait_until_healthy("metadatabase")
        yield Site(airflow, ledger, {user: airflow.token(user) for user in airflow.users})
    many_tables.drop_slot(source)
    for database in (source, ledger, empty, metadata):
        drop_database(postgres, database)


READ = (
    "/tidemark/",
    "/tidemark/api/pipelines",
    "/tidemark/api/pipelines/shop",
    "/tidemark/api/pipelines/shop/overview",
    "/tidemark/api/pipelines/shop/figures",
    "/tidemark/api/pipelines/shop/table?table=shop.orders",
)


def test_whoever_is_not_logged_in_sees_nothing(site: Site) -> None:
    assert {site.ask(path, None)[0] for path in READ} == {401}
    assert site.ask("/tidemark/api/dags/shop_capture/unpark", None, {"table": "shop.orders"})[0] == 401
    assert {site.ask(path, cookie=True)[0] for path in READ} == {200}


def test_a_browser_without_a_session_is_sent_to_the_login_and_back(site: Site) -> None:
    asked = f"http://127.0.0.1:{site.airflow.port}/tidemark/?pipeline=shop"
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    with pytest.raises(urllib.error.HTTPError) as refused:
        browser.open(urllib.request.Request(asked, headers={"Accept": "text/html,*/*"}), timeout=60)
    assert refused.value.code == 302
    login = refused.value.headers["Location"]
    assert login == "/api/v2/auth/login?next=%2Ftidemark%2F%3Fpipeline%3Dshop"
    with pytest.raises(urllib.error.HTTPError) as led_on:
        browser.open(f"http://127.0.0.1:{site.airflow.port}{login}", timeout=60)
    assert "next=%2Ftidemark%2F%3Fpipeline%3Dshop" in led_on.value.headers["Location"], "Airflow takes the way back"


def test_whoever_may_not_read_a_dag_sees_nothing_of_its_pipeline(site: Site) -> None:
    assert site.ask("/tidemark/api/pipelines", "nora") == (200, {"pipelines": [], "problems": []})
    hidden = [site.ask(path, "nora") for path in READ[2:]]
    assert {status for status, _ in hidden} == {404}
    assert hidden[0] == site.ask("/tidemark/api/pipelines/nowhere", "nora"), "as one that does not exist"
    assert site.act("pause", "stock.visits", "nora")[0] == 403


def test_a_viewer_reads_everything_and_is_told_that_nothing_may_be_done(site: Site) -> None:
    assert {site.ask(path, "vera")[0] for path in READ} == {200}
    assert set(site.ask(READ[2], "vera")[1]["may"].values()) == {False}
    assert set(site.ask(READ[2], "vera")[1]["may_unpause"].values()) == {False}
    assert set(site.ask(READ[2], "uma")[1]["may"].values()) == {True}


def test_a_viewer_does_nothing_and_leaves_nothing_in_the_audit_log(site: Site) -> None:
    for action in ("unpark", "pause", "resume", "changes"):
        assert site.act(action, "shop.orders", "vera")[0] == 403
    assert site.state("shop.orders") == "parked"
    assert not [entry for entry in audited(site) if entry["owner"] == "vera"]


def test_who_may_trigger_the_capture_acts_and_stands_in_the_audit_log(site: Site) -> None:
    status, done = site.act("pause", "shop.carts", "uma")
    assert (status, "To go on: resume." in done["said"]) == (200, True)
    assert site.state("shop.carts") == "paused"
    with open_ledger(site.ledger, "shop") as book:
        row = tables.one(book, "shop.carts")
    assert row is not None
    assert row.paused_by == "uma"
    status, refused = site.act("pause", "shop.carts", "uma")
    assert (status, "is paused already, by uma" in refused["detail"]) == (409, True)
    assert site.act("resume", "shop.carts")[0] == 200
    assert site.act("unpark", "shop.orders")[0] == 200
    assert site.state("shop.orders") == "merging"
    entries = [(entry["owner"], entry["event"], json.loads(entry["extra"])["table"]) for entry in audited(site)]
    assert entries == [
        ("uma", "tidemark_pause", "shop.carts"),
        ("uma", "tidemark_pause", "shop.carts"),
        ("admin", "tidemark_resume", "shop.carts"),
        ("admin", "tidemark_unpark", "shop.orders"),
    ]


def test_who_may_trigger_the_capture_sees_values_of_rows_and_the_audit_log_has_who_did(site: Site) -> None:
    before = len(audited(site))
    assert site.act("changes", "shop.orders", "uma") == (200, {"changes": []}), "nothing of it is staged in this lake"
    assert site.act("changes", "shop.nothing", "uma")[0] == 404
    seen = [(entry["owner"], entry["event"]) for entry in audited(site)[before:]]
    assert seen == [("uma", "tidemark_changes")] * 2


def test_a_pipeline_has_one_line_among_all_of_them(site: Site) -> None:
    line = site.ask("/tidemark/api/pipelines/shop/overview")[1]
    assert (line["health"], line["tables"], line["proven"]) == ("red", 500, 445)
    assert sum(line["states"].values()) == 500
    assert site.ask("/tidemark/api/pipelines/fresh/overview")[1]["is_new"] is True
    assert site.ask("/tidemark/api/pipelines/away/overview")[1]["unseen"].keys() == {"source", "ledger"}


def test_the_word_that_pg_upgrade_ran_is_checked_and_takes_the_right_to_trigger_the_capture(site: Site) -> None:
    path = "/tidemark/api/dags/shop_capture/upgraded"
    assert site.ask(path, "vera", {})[0] == 403
    assert site.ask(path, "uma", {}, cookie=True, Sec_Fetch_Site="cross-site")[0] == 403
    status, refused = site.ask(path, "uma", {})
    assert (status, "lacks staging/g1/generation.json" in refused["detail"]) == (503, True), "nothing is in this lake"
    entries = [entry["owner"] for entry in audited(site) if entry["event"] == "tidemark_upgraded"]
    assert entries == ["uma"]


def test_what_another_site_sends_with_the_users_cookie_does_nothing(site: Site) -> None:
    before = len(audited(site))
    elsewhere = ({"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"}, {"Origin": "http://evil.example"})
    for headers in elsewhere:
        assert site.act("pause", "stock.visits", cookie=True, **headers)[0] == 403
    assert site.act("pause", "stock.visits", cookie=True, Content_Type="text/plain")[0] == 415
    assert len(audited(site)) == before
    assert site.state("stock.visits") == "merging"
    here = f"http://127.0.0.1:{site.airflow.port}"
    assert site.act("pause", "stock.visits", cookie=True, Sec_Fetch_Site="same-origin", Origin=here)[0] == 200


def test_a_name_is_never_taken_for_sql_or_markup(site: Site) -> None:
    status, refused = site.act("pause", EVIL)
    assert (status, "has no table" in refused["detail"]) == (404, True)
    assert site.ask(f"/tidemark/api/pipelines/shop/table?table={quote(EVIL)}")[0] == 404
    assert site.ask(f"/tidemark/api/pipelines/{quote(EVIL, safe='')}")[0] == 404
    assert site.act("pause", "shop.orders", dag=quote(EVIL, safe=""))[0] == 404
    assert site.act("pause", "shop.orders", dag="shop_backfill")[0] == 404
    shown = site.ask("/tidemark/api/pipelines/shop")[1]
    assert len(shown["tables"]) == 500
    assert f'shop."{many_tables.SCRIPT}"' in [table["name"] for table in shown["tables"]]


def test_the_page_loads_nothing_from_elsewhere_and_stands_in_no_other_sites_frame(site: Site) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{site.airflow.port}/tidemark/")
    request.add_header("Authorization", f"Bearer {site.tokens['vera']}")
    with _DIRECT.open(request, timeout=60) as answer:
        policy, text = answer.headers["Content-Security-Policy"], answer.read().decode()
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
    assert "//" not in text.replace("<!doctype", "")
    for file in ("page.js", "flow.js", "page.css", "uPlot.iife.min.js", "uPlot.min.css", "icon.svg", "uPlot.LICENSE"):
        assert site.ask(f"/tidemark/static/{file}")[0] == 200


def test_status_details_and_figures_are_those_of_the_ledger(site: Site) -> None:
    shown = site.ask("/tidemark/api/pipelines/shop")[1]
    assert shown["rates"]["changes_min"] > 100
    assert shown["delays"] is None or shown["delays"]["p50_s"] <= shown["delays"]["p99_s"]
    assert max(table["lag_s"] for table in shown["tables"]) == pytest.approx(shown["lag"]["s"], abs=1)
    assert Lsn.parse(shown["positions"]["applied_lsn"]) < Lsn.parse(shown["positions"]["staged_lsn"])
    details = site.ask("/tidemark/api/pipelines/shop/table?table=shop.orders")[1]
    assert details["unfit"] == {"total": 9}
    assert details["versions"][0] == {"version": 2, "changed": ['column "currency" was added']}
    assert [one["kind"] for one in details["delta"]] == ["current", "history"]
    assert details["paths"]["current"].endswith("/lake/shop/current/shop/orders")
    assert details["as_text"]["lines"] == "  - {name: shop.orders, target: {total: text}}"
    (merge,) = details["merges"]
    assert merge["steps"][0] == {"step": "chunks", "way": "files", "why": "40 of their rows are new"}
    assert details["recent"] == {"changes": 3000, "over_s": 86400}
    for hours in (6, 24, 720, 2160):
        figures = site.ask(f"/tidemark/api/pipelines/shop/figures?hours={hours}")[1]
        assert 70 <= len(figures["at"]) <= 401
        assert figures["at"] == sorted(figures["at"])
        assert max(figures["lag_s"]) > 5000 or hours == 6, "the outage of yesterday is seen in every plot"
    assert site.ask("/tidemark/api/pipelines/shop/figures?hours=100000")[0] == 422


def test_a_pipeline_whose_databases_are_away_says_so(site: Site) -> None:
    status, shown = site.ask("/tidemark/api/pipelines/away")
    assert status == 200
    assert set(shown["unseen"]) == {"source", "ledger"}
    assert site.ask("/tidemark/api/pipelines/fresh/figures") == (200, {"at": []})
    status, refused = site.ask("/tidemark/api/pipelines/away/figures")
    assert (status, "nowhere" in refused["detail"]) == (503, True)


def test_a_pipeline_that_never_ran_is_new_and_says_the_next_step(site: Site) -> None:
    shown = site.ask("/tidemark/api/pipelines/fresh")[1]
    assert (shown["health"], shown["unseen"]) == ("warning", {})
    assert [(concern["kind"], concern["severity"]) for concern in shown["concerns"]] == [("new", "warning")]
    done = {step["name"]: step["is_done"] for step in shown["first_steps"]}
    assert done == {"connections": True, "slot": False, "capture": False, "backfill": False, "first proof": False}
    assert shown["may"]["replay"] is True
    assert site.ask("/tidemark/api/pipelines/shop")[1]["first_steps"] == []


def test_airflow_shows_the_page_in_its_navigation_and_on_every_dag(site: Site) -> None:
    (plugin,) = [one for one in site.airflow.get("/api/v2/plugins")["plugins"] if one["name"] == "tidemark"]
    views = {view["destination"]: view["href"] for view in plugin["external_views"]}
    assert views == {"nav": "/tidemark/", "dag": "/tidemark/?dag_id={DAG_ID}"}


def audited(site: Site) -> list[dict[str, Any]]:
    """What Airflow's audit log has of the page's buttons, oldest first, beside the capture DAG."""
    with psycopg.connect(site.airflow.metadata) as connection:
        rows = connection.execute(
            "SELECT owner, event, extra FROM log WHERE dag_id = 'shop_capture' AND event LIKE 'tidemark%' ORDER BY id"
        ).fetchall()
    return [dict(zip(("owner", "event", "extra"), row, strict=True)) for row in rows]
