"""A pipeline whose lake is a bucket of a real S3 server: capture, backfill, and what is killed, broken, or done twice
end as on a disk: equal. `make faults` plays every scenario there too (TIDEMARK_TEST_LAKE=s3).
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest
from py4j.protocol import Py4JJavaError

from sandbox.setup.log_store import JAR
from spark_apps import compact_tables, merge_batch
from tests.faults import workload
from tests.faults.rows_from_before import old_tables
from tests.support import failpoint_names, judge, local_spark, stages
from tests.support.capture import REPOSITORY, Environment
from tests.support.merge_ways import leave_to_spark
from tests.support.remedies import Told, ends_equal
from tests.support.s3_proxy import PASSING, Fault, Proxy, Request, by_lot, from_the, in_front_of, one_in
from tests.support.s3_server import SECRET, S3Server, access, let_in, put_lake
from tests.support.thorough import seeds_of_faults, thorough
from tidemark.errors import LakeRefused, LakeUnreachable
from tidemark.formats import layout
from tidemark.formats.compaction_plan import CompactionPlan, TableCompaction
from tidemark.maintenance import compaction_runs
from tidemark.maintenance.staging_cleanup import retire
from tidemark.names import TableName
from tidemark.storage import log_store_settings
from tidemark.target import table_compaction as upkeep_of_tables
from tidemark.target import table_merge
from tidemark.target.delta import delta_tables
from tidemark.target.delta.session import table_session
from tidemark.target.merge_failures import as_refusal

STAGES = ("drain", "merge", "confirm")

# How often each kind of request may be made by a stage of a run with changes in three tables, after the first ones,
# whatever the lake holds; but for the files of one table without a key, which Spark itself reads and writes. And how
# often more for each data file of a table whose rows change: it is read, and its vector with it.
_READ_BY_SPARK: Final = ("/current/shop/bag/", "/history/shop/bag/part-", "/shop.bag/")
MOST: Final[Mapping[str, Mapping[str, int]]] = {
    "preflight": {"PUT": 4, "GET": 3, "LIST": 1, "HEAD": 4, "DELETE": 1},
    "drain": {"PUT": 5, "GET": 1, "LIST": 1},
    "merge": {"PUT": 22, "GET": 26, "LIST": 7, "HEAD": 8},
    "confirm": {},
}


COPIES: Final = 100
MOST_RUNS: Final = 20  # until a put comes too late
LATE: Final[tuple[Fault, ...]] = ("late", "late", "conflict", "after", "slow down")


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with in_front_of(s3_server.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def shared(new_environment: Callable[..., Environment], s3_server: S3Server, proxy: Proxy) -> Environment:
    # By lot, what breaks may be of one table's requests alone, run after run.
    environment = new_environment("on_s3", workload.TABLES, {"park_after": 1_000})
    put_lake(environment, s3_server, proxy.url)
    workload.create(environment)
    return environment


@pytest.fixture
def shop(shared: Environment, proxy: Proxy) -> Iterator[Environment]:
    """A pipeline that the tests share: each of them leaves its tables equal to the source."""
    shared.let_leases_end()
    proxy.forget()
    yield shared
    proxy.fault = proxy.gate = lambda _: None


@pytest.mark.thorough
def test_changes_a_killed_drain_a_driver_that_outlives_its_task_and_a_backfill_end_equal(shop: Environment) -> None:
    """The next run finds history one step ahead of current, as behind a merge that was killed there."""
    workload.change(shop)
    shop.begin_run()
    shop.crash("drain.after_manifest")
    shop.drain()
    outlived = shop.halt("merge", "merge.before_current")
    shop.let_leases_end()
    workload.change(shop)
    shop.run()
    assert judge.changes_of_outlived(shop, outlived) == []
    shop.let_leases_end()
    old = old_tables(shop)
    shop.backfill(*old.tables, chunk_rows=5)
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []
    assert shop.confirmed_lsn() == shop.staged_lsn()


@pytest.mark.thorough
def test_whatever_requests_break_nothing_is_lost_and_nothing_there_twice(shop: Environment, proxy: Proxy) -> None:
    workload.change(shop)
    proxy.fault = one_in(7)
    shop.run()
    assert {way for way, _ in proxy.broken} == set(PASSING)
    proxy.fault = lambda _: None
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []


@pytest.mark.parametrize("name", thorough(*failpoint_names.OF_CAPTURE))
def test_a_run_killed_here_is_finished_by_its_retry(name: str, shop: Environment, proxy: Proxy) -> None:
    workload.change(shop)
    proxy.fault = one_in(11)
    stage = name.partition(".")[0]
    shop.begin_run()
    for before in STAGES[: STAGES.index(stage)]:
        getattr(shop, before)()
    shop.crash(name)
    for after in STAGES[STAGES.index(stage) :]:
        getattr(shop, after)()
    proxy.fault = lambda _: None
    assert judge.wrongs(shop) == []
    shop.run()  # where a retry's request broke for good, behind the rows: the position is told by the next plan
    assert judge.second_run_changes_nothing(shop) == []
    assert shop.confirmed_lsn() == shop.staged_lsn()


@pytest.mark.parametrize("seed", seeds_of_faults(1, 9))
def test_runs_whose_requests_break_by_lot_are_red_at_worst(seed: int, shop: Environment, proxy: Proxy) -> None:
    lots = Random(seed)
    for _ in range(3):
        workload.change(shop)
        proxy.fault = by_lot(lots.randrange(2**32), lots.choice((4, 8, 16)))
        with suppress(LakeUnreachable, Py4JJavaError):
            shop.run()
        proxy.fault = lambda _: None
        shop.let_leases_end()
    shop.run()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []


@pytest.mark.parametrize("seed", seeds_of_faults(1, 9))
def test_requests_that_arrive_when_they_were_given_up_change_nothing(
    seed: int, shop: Environment, proxy: Proxy
) -> None:
    """At any moment behind: while they are asked again, or in a later run."""
    lots = Random(seed)
    answers = Counter[int]()

    def arrive(_: Request) -> None:
        if lots.randrange(12) == 0:
            answers.update(proxy.let_go())

    for number in itertools.count(1):
        workload.change(shop)
        proxy.gate, proxy.fault = arrive, by_lot(lots.randrange(2**32), lots.choice((6, 12)), LATE)
        with suppress(LakeUnreachable, Py4JJavaError):
            shop.run()
        proxy.fault = lambda _: None
        shop.let_leases_end()
        if number == MOST_RUNS or (number >= 3 and answers[412]):
            break
    shop.run()
    answers.update(proxy.let_go())
    assert answers[412] > 0, "no put was refused, since none came late"
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []


@pytest.mark.thorough
def test_whichever_answer_to_a_put_is_lost_the_merge_knows_its_own(shop: Environment, proxy: Proxy) -> None:
    """What was carried out is refused when it is asked for again."""
    lost = 0
    while True:
        workload.change(shop)
        shop.begin_run()
        shop.drain()
        proxy.forget()
        lost += 1
        proxy.fault = _the_nth_put(lost)
        shop.merge()
        proxy.fault = lambda _: None
        shop.confirm()
        assert shop.confirmed_lsn() == shop.staged_lsn(), [request.target for _, request in proxy.broken]
        if not proxy.broken:
            break
    assert lost > 15
    assert judge.wrongs(shop) == []


def _the_nth_put(nth: int) -> Callable[[Request], Fault | None]:
    puts = 0

    def fault(request: Request) -> Fault | None:
        nonlocal puts
        puts += request.method == "PUT"
        return "after" if request.method == "PUT" and puts == nth else None

    return fault


@pytest.mark.parametrize(
    ("stage", "nth", "how", "word"),
    [
        ("merge", 20, "expired", "400"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ("drain", 6, "expired", "ExpiredToken"),
                ("drain", 1, "wrong secret", "SignatureDoesNotMatch"),
                ("merge", 4, "wrong secret", "403"),  # with a word or, of a HEAD, without
                ("merge", 40, "no right", "403"),
                ("merge", 60, "expired", "400"),
            )
        ),
    ],
)
@pytest.mark.walks("LakeRefused")
def test_credentials_that_end_in_mid_run_lose_nothing_park_nothing_and_stand_nowhere(
    stage: str,
    nth: int,
    how: Fault,
    word: str,
    shop: Environment,
    proxy: Proxy,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    told: Told,
) -> None:
    caplog.set_level("DEBUG", "tidemark")
    workload.change(shop)
    shop.begin_run()
    for before in STAGES[: STAGES.index(stage)]:
        getattr(shop, before)()
    proxy.fault = from_the(nth, how)
    said = ""
    try:
        getattr(shop, stage)()
    except LakeRefused as refused:
        said = str(refused)
    except Py4JJavaError as failed:  # of the result's file; what a driver says then:
        said = str(as_refusal(failed, "result.json", shop.config.lake))
    said += caplog.text
    proxy.fault = lambda _: None
    told.read("LakeRefused", said, word, "or new credentials if they have expired;", "Then run the DAG again")
    assert {row.life.merge for row in shop.table_rows().values()} == {"merging"}
    assert shop.ledger_query("SELECT count(*) FROM tidemark.tables WHERE failed_runs > 0") == [(0,)]

    shop.let_leases_end()
    shop.run()
    assert judge.wrongs(shop) == []
    places = {
        "log": caplog.text,
        "driver": "".join(capfd.readouterr()),
        "error": said,
        "ledger": judge.ledger_as_text(shop),
        "bucket": b"".join(f.read_bytes() for f in judge.lake_folder(shop).rglob("*") if f.is_file()).decode("latin-1"),
    }
    assert [place for place, text in places.items() if SECRET in text] == []


@pytest.mark.thorough
@pytest.mark.walks("LakeUnreachable")
def test_a_store_that_is_away_is_waited_for(shop: Environment, proxy: Proxy, told: Told) -> None:
    workload.change(shop)
    shop.begin_run()
    proxy.fault = from_the(1, "before")
    with told(LakeUnreachable, "The retry asks again"):
        shop.drain()
    proxy.fault = lambda _: None
    shop.drain()
    shop.merge()
    shop.confirm()
    ends_equal(shop)


def test_a_run_asks_so_often_and_no_more(shop: Environment, s3_server: S3Server, proxy: Proxy) -> None:
    for _ in range(2):  # the first changes of a pipeline make its tables
        workload.change(shop)
        shop.begin_run()
        asked = {}
        for stage in MOST:
            proxy.forget()
            getattr(shop, stage)()
            asked[stage] = Counter(r.kind for r in _of_driver(proxy))
    bucket, folder = shop.config.lake.removeprefix("s3a://").split("/", 1)
    keys = s3_server.keys(bucket, f"{folder}/{shop.config.pipeline}/current/shop/item/")
    opened = 2 * sum(key.endswith(".parquet") for key in keys)
    more = {
        (stage, kind): count
        for stage, kinds in asked.items()
        for kind, count in kinds.items()
        if count > MOST[stage].get(kind, 0) + (opened if (stage, kind) == ("merge", "GET") else 0)
    }
    assert more == {}, (asked, opened)


def _of_driver(proxy: Proxy) -> list[Request]:
    """Without what Spark asks for."""
    return [r for r in proxy.requests if not any(place in unquote(r.target) for place in _READ_BY_SPARK)]


@pytest.mark.thorough
@pytest.mark.parametrize("root", ["", "/a/b c/d=1/é/lake"], ids=["the bucket itself", "deep"])
def test_a_lake_may_be_a_bucket_or_lie_deep_in_one(
    root: str, new_environment: Callable[..., Environment], s3_server: S3Server, proxy: Proxy
) -> None:
    environment = new_environment(f"root_{len(root)}", workload.TABLES)
    lake_access = access(proxy.url)
    environment.config = replace(
        environment.config, lake=f"s3a://{s3_server.new_bucket()}{root}", lake_access=lake_access
    )
    environment.buckets = s3_server
    let_in(environment.spark(), environment.config.lake, lake_access)
    workload.create(environment)
    for _ in range(2):
        workload.change(environment)
        environment.run()
    environment.maintain()
    assert judge.wrongs(environment) == []
    assert judge.second_run_changes_nothing(environment) == []


@pytest.mark.thorough
@pytest.mark.parametrize("minutes", [-14, 14])
def test_a_store_whose_clock_is_minutes_off_has_equal_tables(minutes: int, shop: Environment, proxy: Proxy) -> None:
    proxy.clock = timedelta(minutes=minutes)
    try:
        for _ in range(2):
            workload.change(shop)
            shop.run()
        shop.maintain()
        workload.change(shop)
        ends_equal(shop)
    finally:
        proxy.clock = timedelta()


@pytest.mark.thorough
def test_a_driver_of_its_own_lists_each_log_once_and_asks_for_no_length_that_is_known(
    shop: Environment, proxy: Proxy
) -> None:
    """As each run has one: a JVM that knows of no table yet."""
    for _ in range(2):
        workload.change(shop)
        shop.begin_run()
        shop.drain()
        proxy.forget()
        driver = shop.start("merge", own_jvm=True)
        said, _ = driver.communicate(timeout=300)
        assert driver.returncode == 0, said[-3000:]
        shop.confirm()
    assert shop.confirmed_lsn() == shop.staged_lsn()
    asked = _of_driver(proxy)
    logs = Counter(urlsplit(r.target).query.partition("start-after=")[2] for r in asked if r.kind == "LIST")
    assert set(logs.values()) == {1}, logs
    assert len(logs) == 6, "two for each table with a key, the other one's history, and _positions"
    listed = [unquote(r.target) for r in proxy.requests if r.kind == "LIST"]
    of_bag = [target for target in listed if "/current/shop/bag/" in target]
    assert len(of_bag) == 2, ("as it is pinned, and by the transaction of Delta's MERGE", of_bag)
    # Delta itself asks for what it has just committed, and a driver whether its plan is still there.
    heads = Counter(r.target for r in asked if r.kind == "HEAD")
    assert [target for target in heads if not re.search(r"/(_delta_log/[0-9]{20}|plan)\.json$", target)] == []
    assert set(heads.values()) == {1}
    read_twice = {
        target: count for target, count in Counter(r.target for r in asked if r.kind == "GET").items() if count > 2
    }
    assert read_twice == {}, "the keys of a data file, and values that a change does not bring"


@pytest.mark.thorough
def test_a_log_that_a_driver_opens_is_listed_once_in_whichever_millisecond(
    shop: Environment, s3_server: S3Server, proxy: Proxy
) -> None:
    """Delta keeps the millisecond of a listing, and a quick driver asks and lists within one: about each fifth time."""
    workload.change(shop)
    shop.run()
    bucket, folder = shop.config.lake.removeprefix("s3a://").split("/", 1)
    table = layout.history_table(shop.config.pipeline, TableName("shop", "item"))
    content = s3_server.read(bucket, f"{folder}/{table}/_delta_log/{0:020}.json")
    copies = [f"{folder}/copies/{number}" for number in range(COPIES)]
    for copy in copies:
        s3_server.client().put_object(Bucket=bucket, Key=f"{copy}/_delta_log/{0:020}.json", Body=content)
    session = table_session(shop.spark(), "copies", shop.config.lake)
    proxy.forget()
    for copy in copies:
        assert delta_tables.pin(session, f"s3a://{bucket}/{copy}").version == 0
    listed = Counter(unquote(r.target) for r in proxy.requests if r.kind == "LIST")
    assert len(listed) == COPIES
    assert [target for target, times in listed.items() if times > 1] == []


@pytest.mark.parametrize("at", thorough("merge.before_history", "merge.before_current", "merge.before_result"))
def test_a_driver_of_another_jvm_that_outlives_its_task_changes_nothing(at: str, shop: Environment) -> None:
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    outlived = shop.halt("merge", at, own_jvm=True)
    shop.let_leases_end()
    workload.change(shop)
    shop.run()
    assert judge.changes_of_outlived(shop, outlived) == []
    shop.let_leases_end()
    assert judge.wrongs(shop) == []
    assert judge.second_run_changes_nothing(shop) == []


@pytest.mark.thorough
def test_a_first_load_puts_the_files_of_its_chunks_into_the_tables_and_is_proven(
    shop: Environment, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: list[int] = []
    original = table_merge.first_load

    def spied(*given: Any) -> Any:
        loaded = original(*given)
        whole.append(loaded.rows)
        return loaded

    monkeypatch.setattr(table_merge, "first_load", spied)
    old = old_tables(shop)
    shop.begin_backfill(old.item, chunk_rows=5)
    proxy.fault = one_in(3)
    shop.plan()
    shop.read()
    proxy.fault = lambda _: None
    assert proxy.broken
    old.change()
    shop.end_backfill()
    assert sum(whole) > 0
    shop.backfill(*old.tables, chunk_rows=5)
    shop.run()
    assert judge.wrongs(shop) == []
    proofs = shop.verify().tables
    assert {proof.table for proof in proofs} == set(shop.table_rows())
    assert [str(proof) for proof in proofs if proof.unproven or proof.outcome.differences] == []


@pytest.mark.thorough
def test_what_lies_in_a_bucket_is_compacted_retired_and_proven(
    shop: Environment, s3_server: S3Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the files that only a merge of many changes makes. While the tables are compacted for the first time, a
    request in thirteen is broken: what that leaves undone is left to the next night, and whole."""
    bucket = urlsplit(shop.config.lake).netloc
    for _ in range(2):
        workload.change(shop)
        shop.run()
    with monkeypatch.context() as many:
        leave_to_spark(many)
        for number in range(2):
            shop.execute(f"INSERT INTO shop.item SELECT i, 'many' FROM generate_series({90_000 + number}, 90_100, 2) i")
            shop.run()
    names = [key.rpartition("/")[2] for key in s3_server.keys(bucket)]
    assert any(name.startswith("copied-") for name in names), "no staged file became one of history"
    assert any(name.startswith("deletion_vector_") for name in names), "no vector is a file of its own"

    monkeypatch.setattr(upkeep_of_tables, "MANY_SMALL", {"history": 2, "current": 2})
    monkeypatch.setattr(upkeep_of_tables, "LITTLE_BYTES", 0)
    proxy.fault = one_in(13)
    _keep_up(shop)
    proxy.fault = lambda _: None
    assert proxy.broken
    assert judge.wrongs(shop) == []
    workload.change(shop)
    shop.run()
    kept = _keep_up(shop)
    assert [table.left for table in kept if table.left] == []
    assert {table.kind for table in kept if table.compacted} == {"history", "current"}

    staged = [key for key in s3_server.keys(bucket) if "/staging/" in key]
    shop.ledger_query("UPDATE tidemark.batches SET registered_at = registered_at - interval '30 days'")
    retire(shop.task("maintenance"))
    assert len([key for key in s3_server.keys(bucket) if "/staging/" in key]) < len(staged) / 2

    workload.change(shop)
    shop.run()
    assert judge.wrongs(shop) == []
    proofs = shop.verify().tables
    assert {proof.table for proof in proofs} == set(shop.table_rows())
    assert [str(proof) for proof in proofs if proof.unproven or proof.outcome.differences] == []
    assert judge.second_run_changes_nothing(shop) == []


@pytest.mark.thorough
@pytest.mark.walks("LogStoreUnfenced")
def test_a_driver_whose_machine_has_another_log_store_writes_nothing_and_another_one_tells_no_secret(
    shop: Environment, proxy: Proxy, tmp_path: Path, told: Told
) -> None:
    """Drivers of their own, as spark-submit starts them, with all that Spark itself keeps of an application."""
    workload.change(shop)
    shop.begin_run()
    shop.drain()
    settings = {
        **shop.config.lake_access.spark_settings(shop.config.lake),
        "spark.master": "local[2]",
        "spark.jars": f"{local_spark.jars()},{JAR}",
        "spark.driver.extraClassPath": local_spark.s3a_jars(),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(tmp_path / "events"),
        "spark.logConf": "true",
    }
    (tmp_path / "events").mkdir()
    said: list[str] = []

    def submit(uri: str) -> None:
        lines = [f"{name} {value}" for name, value in settings.items()]
        (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        secrets = shop.config.lake_access.driver_environment(tmp_path)
        driver = subprocess.run(
            [Path(sys.executable).with_name("spark-submit"), merge_batch.__file__, "--manifest", uri],
            env={
                **own,
                **secrets,
                "AWS_SESSION_TOKEN": "",
                "SPARK_CONF_DIR": str(tmp_path),
                "PYTHONPATH": str(REPOSITORY / "include"),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        said.append(driver.stdout + driver.stderr)

    proxy.forget()
    settings[log_store_settings.OF_S3] = "io.delta.storage.S3SingleDriverLogStore"
    stages.merge(shop.stage_input(), submit)
    told.read("LogStoreUnfenced", said[0], f"{log_store_settings.OF_S3} is io.delta.storage.S3SingleDriverLogStore")
    assert [r.target for r in proxy.requests if r.method == "PUT" and "/plans/" not in r.target] == []

    del settings[log_store_settings.OF_S3]
    stages.merge(shop.stage_input(), submit)
    shop.confirm()
    assert shop.confirmed_lsn() == shop.staged_lsn(), said[1][-3000:]
    assert judge.wrongs(shop) == []
    events = [file.read_text(errors="replace") for file in (tmp_path / "events").rglob("*") if file.is_file()]
    assert any("SparkListenerEnvironmentUpdate" in text for text in events), "Spark's list of all settings is not there"
    assert [text for text in (*said, *events) if SECRET in text] == []


def _keep_up(shop: Environment) -> list[TableCompaction]:
    """Both steps of the maintenance DAG, each an application; what they say of each Delta table."""
    task = shop.task("maintenance")
    plan = compaction_runs.plan_inspection(task)
    assert plan is not None
    kept = _applied(shop, plan)
    with compaction_runs.plan_current(task, plan.tables) as taken:
        assert taken is not None
        return kept + _applied(shop, taken)


def _applied(shop: Environment, plan: CompactionPlan) -> list[TableCompaction]:
    with suppress(Py4JJavaError):  # of the result's file
        compact_tables.compact(shop.spark(), f"{plan.lake}/{layout.maintenance_file(plan.pipeline, plan.plan)}")
    result = compaction_runs.take_result(shop.config, plan)
    return [] if result is None else list(result.tables)
