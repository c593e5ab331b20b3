"""What the merge task hands to spark-submit, and what it makes of its end. spark-submit is a stand-in here."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import socket
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sandbox.services.postgres import wait_for
from tests.airflow.conftest import SHOP
from tests.support.airflow_home import REPOSITORY, postgres_connection
from tests.support.remedies import Told
from tests.support.s3_server import KEY, REGION, SECRET, S3Server
from tidemark.capture import merge_planning, table_progress
from tidemark.capture.merge_planning import Ingested, IngestedTable, PlanScope
from tidemark.capture.table_progress import AdvancedTable
from tidemark.config.file_reader import load
from tidemark.errors import (
    ConnectionMissing,
    JarsUnresolved,
    LeaseTaken,
    SparkApplicationFailed,
    SparkApplicationTooLong,
)
from tidemark.formats.compaction_plan import CompactionResult
from tidemark.formats.error_record import ErrorRecord
from tidemark.formats.manifest import Claim, StagedFile
from tidemark.formats.merge_plan import MergePlan, PlannedBatch, PlannedTable
from tidemark.lsn import Lsn
from tidemark.maintenance import compaction_runs
from tidemark.names import TableName
from tidemark.run import Run
from tidemark_airflow.assets import pipeline_alias
from tidemark_airflow.dag_factory import capture_dag
from tidemark_airflow.driver import submission
from tidemark_airflow.operators.capture_operators import MergeOperator
from tidemark_airflow.operators.maintenance_operators import CompactOperator

PLAN = "20250101T000000-attempt"
SUBMIT = """#!/bin/sh
printf '%s\\n' "$@" > {folder}/arguments
env > {folder}/environment
readlink /proc/self/fd/0 > {folder}/input
nice > {folder}/niceness
for last; do :; done
"""
ENDS = {
    "result": 'echo {} > "$(dirname "$last")/result.json"\n',
    "no result": "echo no java >&2; exit 1\n",
    "result, then a crash": 'echo {} > "$(dirname "$last")/result.json"; exit 137\n',
    "never": "echo $$ > {folder}/pid; exec sleep 600\n",
    # As spark-submit's JVM has the driver's Python below it, which does not end with it.
    "never, with a child": "sleep 600 > /dev/null 2>&1 & echo $! > {folder}/child; echo $$ > {folder}/pid; sleep 600\n",
}


class Merge:
    """A merge task whose plan, results and spark-submit are given by the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, lake: str = "lake") -> None:
        self.folder = folder
        file = folder / "shop.yaml"
        file.write_text(SHOP.replace("lake: lake", f"lake: {lake}") + "spark: {conf: {spark.driver.memory: 3g}}\n")
        self.config = load(file)
        self.plan = folder / "lake" / "shop" / "plans" / PLAN
        self.plan.mkdir(parents=True)
        self.tables: list[IngestedTable] = []
        self.of_changes, self.of_chunks = (0, 0), (0, 0)  # rows and bytes
        self.held_by: str | None = None
        self.asked: tuple[PlanScope, float] | None = None
        self.ingested_by_another = False
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.operator = MergeOperator(task_id="merge", config=self.config)
        monkeypatch.setattr(merge_planning, "leased_plan", self._leased_plan)
        monkeypatch.setattr(merge_planning, "ingest", self._ingest)
        monkeypatch.setattr(merge_planning, "ingested_by_another", lambda *_: Ingested((PLAN,), tuple(self.tables)))
        monkeypatch.setattr(table_progress, "advanced", self._advanced)

    def ends_with(self, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
        script = self.folder / "spark-submit"
        script.write_text((SUBMIT + ENDS[end]).replace("{folder}", str(self.folder)))
        script.chmod(0o755)
        real = submission.driver_environment

        def environment() -> dict[str, str]:
            inherited = real()
            return {**inherited, "PATH": f"{self.folder}:{inherited['PATH']}"}

        monkeypatch.setattr(submission, "driver_environment", environment)
        monkeypatch.setenv("PATH", f"{self.folder}:{os.environ['PATH']}")

    def execute(self, run_type: str = "scheduled") -> dict[str, Any]:
        added = SimpleNamespace(add=lambda asset, extra: self.events.append((asset.uri, extra)))
        ti = SimpleNamespace(dag_id="shop_capture", run_id="manual__1", task_id="merge", map_index=-1)
        dag_run = SimpleNamespace(run_type=run_type)
        context: Any = {"ti": ti, "dag_run": dag_run, "outlet_events": {pipeline_alias("shop"): added}}
        return self.operator.execute(context)

    def arguments(self) -> list[str]:
        return (self.folder / "arguments").read_text().splitlines()

    def environment(self) -> dict[str, str]:
        lines = (self.folder / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    @contextmanager
    def _leased_plan(self, run: Run, wanted: PlanScope, *, wait_s: float) -> Iterator[MergePlan]:
        self.asked = wanted, wait_s
        if self.held_by is not None:
            raise LeaseTaken(lease="table:shop.orders", pipeline="shop", holder=self.held_by, until="soon")
        assert (run.holder, run.run_id) == ("shop_capture/manual__1/merge/-1", "shop_capture/manual__1")
        files = (StagedFile("changes.parquet", *self.of_changes, "", 1),)
        chunk = (StagedFile("chunk.parquet", *self.of_chunks, "", 1),)
        claim = Claim("b1", "1", "1", Lsn(150), "", Lsn(140), "10:10:", None, self.of_chunks[0], chunk)
        batch = PlannedBatch(Lsn(100), Lsn(200), files, unchanged=0, moved=0, truncates=0, claims=(claim,))
        yield MergePlan(PLAN, "shop", 1, run.config.lake, 4, (PlannedTable("shop.orders", Lsn(100), (), (batch,)),))

    def _ingest(self, run: Run) -> Ingested:
        if self.ingested_by_another or not (self.plan / "result.json").exists():
            return Ingested()
        return Ingested((PLAN,), tuple(self.tables))

    def _advanced(self, run: Run, ingested: Any) -> list[AdvancedTable]:
        return [
            AdvancedTable(name := TableName.parse(table.table), name, 1, table.before, table.after, table.rows, 2.04)
            for plan in ingested
            for table in plan.tables
            if table.advanced
        ]


def table(name: str, error: str | None = None, kind: str = "MergeFailed", parked: bool = False) -> IngestedTable:
    error_record = None if error is None else ErrorRecord(kind, "RETRY", error)
    after = Lsn(200) if error is None else Lsn(100)
    return IngestedTable(f"shop.{name}", 1, Lsn(100), after, {"inserted": 3}, 1.0, error_record, parked)


@pytest.fixture
def merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Merge:
    for name in ("SHOP_SOURCE", "TIDEMARK_LEDGER"):
        value = json.loads(postgres_connection("host=h port=1 user=u dbname=d")) | {"password": "hidden-secret"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(value))
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in ("b.jar", "a.jar"):
        (jars / name).touch()
    monkeypatch.setenv("TIDEMARK_SPARK_JARS", str(jars))
    use_spark(monkeypatch, "local[2]")
    return Merge(tmp_path, monkeypatch)


def use_spark(monkeypatch: pytest.MonkeyPatch, master: str, deploy_mode: str = "client") -> None:
    value = {"conn_type": "spark", "host": master, "extra": {"deploy-mode": deploy_mode}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(value))


def following(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def test_the_application_gets_one_argument_and_no_secret(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    merge.ends_with("result", monkeypatch)
    merge.execute()
    arguments = merge.arguments()
    application = str(REPOSITORY / "spark_apps" / "merge_batch.py")
    assert arguments[arguments.index(application) :] == [application, "--manifest", f"{merge.plan}/plan.json"]
    assert following(arguments, "--master") == "local[2]"
    log_store = application.replace("merge_batch.py", "log_store/tidemark-log-store.jar")
    assert following(arguments, "--jars").split(",") == [*(f"{merge.folder}/jars/{n}.jar" for n in "ab"), log_store]
    assert "spark.driver.memory=3g" in arguments
    everything = "\n".join([*arguments, *merge.environment().values()])
    assert "hidden-secret" not in everything


def test_a_driver_gives_way_as_far_as_its_operator_says(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    merge.ends_with("result", monkeypatch)
    seen = []
    for niceness in (0, 2):
        merge.operator.niceness = niceness
        merge.execute()
        seen.append(int((merge.folder / "niceness").read_text()))
    assert seen == [os.nice(0), os.nice(0) + 2]


def test_a_driver_starts_on_a_machine_without_nice(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    merge.ends_with("result", monkeypatch)
    merge.operator.niceness = 2
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda program, *rest: None if program == "nice" else which(program, *rest))
    merge.execute()
    assert int((merge.folder / "niceness").read_text()) == os.nice(0)


def test_what_kept_the_application_of_a_compaction_from_starting_is_raised(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> CompactionResult:
        raise SparkApplicationFailed(plan=PLAN, detail="it left no result")

    monkeypatch.setattr(compaction_runs, compaction_runs.ordered_result.__name__, ended)
    application: Any = SimpleNamespace(failure=ConnectionMissing(connection="spark", variable="AIRFLOW_CONN_SPARK"))
    plan: Any = SimpleNamespace(plan=PLAN)
    run: Any = None
    with pytest.raises(ConnectionMissing):
        CompactOperator(task_id="compact", config=merge.config).result_of(run, plan, application, 1.0)


@pytest.mark.parametrize("master", ["local[2]", "spark://spark.example:7077", "yarn"])
def test_a_driver_that_is_a_child_has_this_python_and_its_library(
    merge: Merge, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """And none of it stands in the command line, where the hook writes variables for YARN and Kubernetes."""
    use_spark(monkeypatch, master)
    merge.ends_with("result", monkeypatch)
    merge.execute()
    environment = merge.environment()
    assert environment["PYTHONPATH"].split(":")[0] == str(REPOSITORY / "include")
    assert Path(environment["PYSPARK_PYTHON"]).samefile(sys.executable)
    assert following(merge.arguments(), "--master") == master
    assert "--py-files" not in merge.arguments()
    assert not [argument for argument in merge.arguments() if "PYSPARK" in argument]
    assert "hidden-secret" not in "\n".join([*merge.arguments(), *environment.values()])


@pytest.mark.parametrize(
    ("master", "aside"), [("local[2]", True), ("spark://spark.example:7077", True), ("yarn", False)]
)
def test_the_settings_of_the_machine_are_named_beside_an_archive_of_classes(
    merge: Merge, monkeypatch: pytest.MonkeyPatch, master: str, aside: bool
) -> None:
    settings, archives = merge.folder / "settings", merge.folder / "archives"
    settings.mkdir()
    (settings / "spark-defaults.conf").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(settings))
    monkeypatch.setenv("TIDEMARK_JVM_ARCHIVES", str(archives))
    for variable in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"):
        monkeypatch.delenv(variable, raising=False)
    use_spark(monkeypatch, master)
    merge.ends_with("result", monkeypatch)
    merge.execute()
    arguments, environment = merge.arguments(), merge.environment()
    if aside:
        assert following(arguments, "--properties-file") == str(settings / "spark-defaults.conf")
        assert environment["SPARK_CONF_DIR"] == str(archives / "no-settings")
        assert "ArchiveClassesAtExit" in environment["SPARK_SUBMIT_OPTS"]
    else:
        assert "--properties-file" not in arguments
        assert environment["SPARK_CONF_DIR"] == str(settings)
        assert "Archive" not in environment.get("SPARK_SUBMIT_OPTS", "")


def test_to_a_driver_in_the_cluster_the_library_travels_as_a_zip_file(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_spark(monkeypatch, "yarn", "cluster")
    merge.ends_with("result", monkeypatch)
    copy = merge.folder / "kept.zip"
    script = merge.folder / "spark-submit"
    keep = f'cp "$(echo "$*" | grep -o "/[^ ]*[.]zip")" {copy}\n'
    script.write_text(script.read_text().replace("for last", f"{keep}for last"))
    merge.execute()
    assert following(merge.arguments(), "--deploy-mode") == "cluster"
    names = zipfile.ZipFile(copy).namelist()
    assert "tidemark/target/table_merge.py" in names
    assert not [name for name in names if not name.startswith("tidemark/") or not name.endswith(".py")]
    assert "hidden-secret" not in "\n".join(merge.arguments())


def test_what_an_image_has_does_not_travel(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    use_spark(monkeypatch, "yarn", "cluster")
    monkeypatch.setenv("TIDEMARK_SPARK_APPS", "local:///opt/tidemark/spark_apps")
    monkeypatch.setenv("TIDEMARK_SPARK_JARS", f"local://{merge.folder}/jars")
    merge.ends_with("result", monkeypatch)
    merge.execute()
    arguments = merge.arguments()
    assert "local:///opt/tidemark/spark_apps/merge_batch.py" in arguments
    log_store = "local:/opt/tidemark/spark_apps/log_store/tidemark-log-store.jar"
    of_image = [f"local:{merge.folder}/jars/{name}.jar" for name in "ab"]
    assert following(arguments, "--jars").split(",") == [*of_image, log_store]
    assert "--py-files" not in arguments


def test_the_secret_of_a_lake_on_s3_is_in_the_drivers_environment_and_nowhere_else(
    merge: Merge, monkeypatch: pytest.MonkeyPatch, s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    value = {
        "conn_type": "aws",
        "login": KEY,
        "password": SECRET,
        "extra": {"endpoint_url": s3_server.url, "region_name": REGION},
    }
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_S3", json.dumps(value))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the machine's own identity")
    bucket = s3_server.new_bucket()
    (merge.folder / "s3").mkdir()
    on_s3 = Merge(merge.folder / "s3", monkeypatch, f"{{root: 's3://{bucket}/lake', connection: lake_s3}}")
    (merge.folder / "jars" / "s3a").mkdir()
    (merge.folder / "jars" / "s3a" / "hadoop-aws.jar").touch()
    on_s3.ends_with("no result", monkeypatch)
    with pytest.raises(SparkApplicationFailed) as failed:
        on_s3.execute()
    environment, arguments = on_s3.environment(), on_s3.arguments()
    assert (environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]) == (KEY, SECRET)
    assert environment["AWS_SESSION_TOKEN"] == ""
    assert [name for name, value in environment.items() if SECRET in value] == ["AWS_SECRET_ACCESS_KEY"]
    assert f"spark.hadoop.fs.s3a.bucket.{bucket}.endpoint={s3_server.url}" in arguments
    jars = [Path(jar).name for jar in following(arguments, "--jars").split(",")]
    assert jars == ["a.jar", "b.jar", "hadoop-aws.jar", "tidemark-log-store.jar"]
    everything = [*arguments, caplog.text, str(failed.value), repr(on_s3.operator.config)]
    assert SECRET not in "\n".join(everything)


def test_an_event_is_added_for_each_table_that_advanced(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    merge.ends_with("result", monkeypatch)
    merge.tables = [table("orders"), table("stock", error="broken", parked=True)]
    assert merge.execute() == {"plan": PLAN, "advanced": 1}
    (event,) = merge.events
    assert event[0] == "tidemark://shop/shop/orders"
    assert event[1] == {
        "generation": 1,
        "start_lsn": "0/64",
        "end_lsn": "0/C8",
        "rows": {"inserted": 3},
        "lag_s": 2.0,
        "definition_changes": [],
        "current": f"{merge.folder}/lake/shop/current/shop/orders",
        "history": f"{merge.folder}/lake/shop/history/shop/orders",
    }


def test_a_driver_that_left_no_result_is_retried(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    merge.ends_with("no result", monkeypatch)
    with pytest.raises(SparkApplicationFailed, match="it left no result") as failed:
        merge.execute()
    assert "Error code is: 1" in str(failed.value.__cause__)


def test_a_driver_that_died_after_its_result_has_worked(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    merge.ends_with("result, then a crash", monkeypatch)
    merge.tables = [table("orders")]
    assert merge.execute()["advanced"] == 1


@pytest.mark.parametrize(
    ("tables", "outcome"),
    [
        ([table("orders"), table("stock", error="broken")], None),
        ([table("orders", error="broken", parked=True)], None),
        ([], None),
        ([table("orders", error="broken"), table("stock", error="torn")], AirflowFailException),
        ([table("orders"), table("stock", error="no disk", kind="LakeFailed")], SparkApplicationFailed),
    ],
    ids=["one of two", "all, and parked", "nothing", "all, and none parked", "the lake"],
)
def test_a_tables_error_is_its_own_and_the_lakes_is_the_runs(
    merge: Merge,
    monkeypatch: pytest.MonkeyPatch,
    tables: list[IngestedTable],
    outcome: type[Exception] | None,
) -> None:
    merge.ends_with("result", monkeypatch)
    merge.tables = tables
    if outcome is None:
        merge.execute()
        return
    with pytest.raises(outcome, match=r"no disk|broken"):
        merge.execute()
    assert len(merge.events) == sum(one.error is None for one in tables), "what advanced is told all the same"


def test_what_another_merge_works_on_is_left_to_the_next_one(merge: Merge) -> None:
    merge.held_by = "shop_backfill/manual__2/merge/-1"
    with pytest.raises(AirflowSkipException, match=r"Left to the next merge: .* is held by shop_backfill/manual__2"):
        merge.execute()


@pytest.mark.parametrize("all_by_hand", [True, False])
@pytest.mark.parametrize("run_type", ["manual", "scheduled"])
def test_a_run_that_a_person_triggers_merges_what_waits_by_choice(
    merge: Merge, monkeypatch: pytest.MonkeyPatch, run_type: str, all_by_hand: bool
) -> None:
    merge.ends_with("result", monkeypatch)
    merge.operator.all_by_hand = all_by_hand
    merge.execute(run_type)
    assert merge.asked == (PlanScope(all_of_them=all_by_hand and run_type == "manual"), 0)


def test_an_application_of_several_merges_its_share(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    merge.ends_with("result", monkeypatch)
    merge.operator.tables, merge.operator.wait_s = ["shop.orders"], 7
    merge.execute()
    assert merge.asked == (PlanScope(tables=frozenset({"shop.orders"})), 7)


def test_airflow_makes_an_operator_of_a_mapped_merge(merge: Merge) -> None:
    several = dataclasses.replace(merge.config, merge=merge.config.merge.model_copy(update={"applications": 2}))
    mapped = capture_dag(several).get_task("merge")
    task = mapped.unmap({"tables": ["shop.orders"]})
    assert isinstance(task, MergeOperator)
    assert (task.tables, task.config, task.all_by_hand) == (["shop.orders"], several, True)
    assert task.outlets == mapped.outlets == [pipeline_alias("shop")]


def test_what_another_task_ingested_first_is_judged_all_the_same(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    merge.ends_with("result", monkeypatch)
    merge.ingested_by_another = True
    merge.tables = [table("orders", error="no disk", kind="LakeFailed")]
    with pytest.raises(SparkApplicationFailed, match="no disk"):
        merge.execute()


def test_jars_that_spark_submit_did_not_get_are_an_error_of_their_own(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "java.lang.RuntimeException: [unresolved dependency: io.delta#delta-spark_4.2_2.13;4.4.0: not found]"
    monkeypatch.setitem(ENDS, "no jars", f"echo '{said}' >&2\nexit 1\n")
    merge.ends_with("no jars", monkeypatch)
    with pytest.raises(JarsUnresolved, match=r"could not be fetched: io\.delta#delta-spark_4\.2_2\.13;4\.4\.0\. Run"):
        merge.execute()
    merge.ends_with("no result", monkeypatch)
    with pytest.raises(SparkApplicationFailed):
        merge.execute()


@pytest.mark.walks("SparkApplicationFailed", "SparkApplicationTooLong")
def test_after_a_driver_that_ended_early_the_retry_applies_the_rest(
    merge: Merge, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    merge.ends_with("no result", monkeypatch)
    with told(SparkApplicationFailed, "the next run applies the rest"):
        merge.execute()
    limited = merge.config.merge.model_copy(update={"timeout_s": 1})
    merge.operator.config = dataclasses.replace(merge.config, merge=limited)
    merge.ends_with("never", monkeypatch)
    with told(SparkApplicationTooLong, "the retry applies the rest"):
        merge.execute()
    merge.ends_with("result", monkeypatch)
    assert merge.execute()["plan"] == PLAN


def test_an_application_that_runs_too_long_is_ended_with_what_it_started(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge.ends_with("never, with a child", monkeypatch)
    merge.operator.config = dataclasses.replace(
        merge.config, merge=merge.config.merge.model_copy(update={"timeout_s": 2})
    )
    with pytest.raises(SparkApplicationTooLong, match=r"was ended after 2 s .* merge.timeout_s allows 2 s"):
        merge.execute()
    for noted in ("pid", "child"):
        gone(int((merge.folder / noted).read_text()))


def test_what_a_result_says_counts_though_the_application_did_not_end(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENDS, "result, then never", ENDS["result"] + "exec sleep 600\n")
    merge.ends_with("result, then never", monkeypatch)
    merge.tables = [table("orders")]
    merge.operator.config = dataclasses.replace(
        merge.config, merge=merge.config.merge.model_copy(update={"timeout_s": 1})
    )
    assert merge.execute()["advanced"] == 1


def gone(pid: int) -> None:
    """Wait until the process has ended; it was nobody's child who would reap it, so a zombie has ended too."""

    def ended() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_for(f"process {pid} has ended", ended)


@pytest.mark.parametrize(
    ("conf", "given", "quiet"),
    [
        ({}, None, True),
        ({"spark.driver.extraJavaOptions": "-Xss4m"}, None, True),
        ({"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=my.xml"}, None, False),
        ({}, "/etc/log4j2.xml", False),
    ],
    ids=["nothing is chosen", "other options", "by a property", "by the environment"],
)
def test_spark_is_quiet_unless_somebody_chose_how_it_logs(
    merge: Merge, monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], given: str | None, quiet: bool
) -> None:
    monkeypatch.delenv("LOG4J_CONFIGURATION_FILE", raising=False)
    if given is not None:
        monkeypatch.setenv("LOG4J_CONFIGURATION_FILE", given)
    merge.ends_with("result", monkeypatch)
    merge.operator.config = dataclasses.replace(merge.config, spark_conf=conf)
    merge.execute()
    shipped = REPOSITORY / "spark_apps" / "log4j2.properties"
    assert shipped.exists()
    assert merge.environment().get("LOG4J_CONFIGURATION_FILE") == (str(shipped) if quiet else given)


@pytest.mark.parametrize(
    ("of_changes", "of_chunks", "is_small"),
    [
        ((3_000_000, 0), (12_000_000, 0), True),
        ((3_000_001, 0), (0, 0), False),
        ((0, 0), (12_000_001, 0), False),
        ((1, 2**27), (1, 2**27), True),
        ((1, 2**27), (1, 2**27 + 1), False),
    ],
)
@pytest.mark.parametrize("given", [None, "-XX:TieredStopAtLevel=4"])
def test_a_driver_with_little_to_do_compiles_quickly_unless_somebody_chose_otherwise(
    merge: Merge,
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    of_changes: tuple[int, int],
    of_chunks: tuple[int, int],
    is_small: bool,
) -> None:
    """Of two flags the JVM takes the last, so what somebody chose has to come behind."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    if given is not None:
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", given)
    merge.of_changes, merge.of_chunks = of_changes, of_chunks
    merge.ends_with("result", monkeypatch)
    merge.execute()
    chosen = merge.environment().get("SPARK_SUBMIT_OPTS")
    if not is_small:
        assert chosen == given
    else:
        assert chosen is not None
        assert chosen.split()[0] == "-XX:TieredStopAtLevel=1"
        assert chosen.split()[2:] == ([given] if given else [])


def test_spark_submit_does_not_hold_the_tasks_connection_to_its_supervisor(
    merge: Merge, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge.ends_with("result", monkeypatch)
    supervised, supervisor = socket.socketpair()
    own = os.dup(0)
    os.dup2(supervised.fileno(), 0)
    try:
        merge.execute()
    finally:
        os.dup2(own, 0)
        for number in (own, supervised.detach(), supervisor.detach()):
            os.close(number)
    assert (merge.folder / "input").read_text().strip() == "/dev/null"


def test_killing_the_task_kills_spark_submit(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    merge.ends_with("never", monkeypatch)
    raised: list[BaseException] = []

    def run(execute: Callable[[], Any] = merge.execute) -> None:
        try:
            execute()
        except BaseException as error:
            raised.append(error)

    task = threading.Thread(target=run, daemon=True)
    task.start()
    noted = merge.folder / "pid"
    pid = int(wait_for("spark-submit runs", lambda: noted.exists() and noted.read_text().strip()))
    os.kill(pid, 0)
    merge.operator.on_kill()
    task.join(timeout=30)
    assert not task.is_alive()
    assert isinstance(raised[0], SparkApplicationFailed)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
