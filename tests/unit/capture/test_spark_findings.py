"""How spark-submit would be called, judged from the connection, what lies on this machine, and who answers."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tidemark.capture.preflight import spark_findings as of_spark
from tidemark.capture.preflight.spark_findings import spark_findings
from tidemark.config import PipelineConfig, TableRule
from tidemark.findings import Finding
from tidemark.spark_submit import spark_jars
from tidemark.spark_submit.jar_versions import delta_jars
from tidemark.spark_submit.spark_connection import SparkConnection
from tidemark.spark_submit.spark_defaults import spark_defaults
from tidemark.storage.lake_access import LakeAccess

CONFIG = PipelineConfig("shop", "s", "slot", "pub", True, (TableRule("shop.*"),), "hdfs://b/l", "l")
ELSEWHERE = "192.0.2.1"  # an address of documentation: nobody has it
PYTHON = {"spark.pyspark.python": "./python/bin/python"}
HADOOP = {"HADOOP_CONF_DIR": "/etc/hadoop"}


@pytest.fixture(autouse=True)
def answers_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_spark, "ANSWERS_WITHIN_S", 0.1)


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The variables of a task on a machine with Java and spark-submit."""
    for program in ("java", "spark-submit"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    return {"PATH": str(tmp_path), "SPARK_HOME": str(tmp_path / "spark")}


@pytest.fixture
def master() -> Iterator[str]:
    """One that answers, on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"spark://127.0.0.1:{listening.getsockname()[1]}"


def found(
    master: str,
    mode: str | None,
    environment: Mapping[str, str],
    config: PipelineConfig = CONFIG,
    jars: str | None = None,
) -> list[Finding]:
    return list(spark_findings(config, SparkConnection(master, mode), environment, jars))


def severities(findings: list[Finding]) -> list[str]:
    return [finding.severity for finding in findings]


@pytest.mark.parametrize(
    ("master", "mode", "hadoop", "said"),
    [
        ("local", None, {}, ""),
        ("local[*]", "client", {}, ""),
        ("local[2]", "cluster", {}, "has no cluster"),
        ("yarn", "client", {}, "as a missing or unreadable connection does"),
        ("yarn", "client", HADOOP, ""),
        ("yarn", "cluster", HADOOP, ""),
        ("yarn", "remote", HADOOP, "deploy mode 'remote', which Spark does not know"),
        ("spark://local[*]", None, {}, "which Spark does not know"),
        ("spark://", None, {}, "which Spark does not know"),
        ("spark://master", None, {}, "which Spark does not know"),
        ("spark://master:7077", "cluster", {}, "drivers of Python applications in client mode alone"),
        ("k8s://https://host:443", "client", {}, ""),
        ("k8s://https://host:443", "cluster", {}, ""),
    ],
)
def test_a_connection_by_which_no_merge_could_run_is_refused(
    machine: dict[str, str], master: str, mode: str | None, hadoop: dict[str, str], said: str
) -> None:
    findings = found(master, mode, {**machine, **hadoop}, replace(CONFIG, spark_conf=PYTHON))
    assert severities(findings) == (["error"] if said else [])
    assert said in "".join(map(str, findings))


def test_nobody_looked_and_nothing_is_said() -> None:
    assert list(spark_findings(CONFIG, None, {})) == []


def test_what_the_hook_refuses_is_said_in_its_words(machine: dict[str, str]) -> None:
    (finding,) = spark_findings(CONFIG, SparkConnection("", refused="kubernetes is not installed"), machine)
    assert finding.severity == "error"
    assert "kubernetes is not installed" in finding.message


@pytest.mark.parametrize(("mode", "refused"), [("client", False), ("cluster", True)])
def test_a_lakes_key_goes_to_a_driver_that_is_a_child_and_to_no_other(
    machine: dict[str, str], mode: str, refused: bool
) -> None:
    with_key = replace(CONFIG, lake_access=LakeAccess(secrets={"secret_access_key": "s"}), spark_conf=PYTHON)
    assert severities(found("yarn", mode, {**machine, **HADOOP}, with_key)) == (["error"] if refused else [])


@pytest.mark.parametrize("program", ["spark-submit", "java"])
def test_a_program_that_is_not_there_is_named(
    machine: dict[str, str], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/bin/python")
    (Path(machine["PATH"]) / program).unlink()
    (finding,) = found("local[2]", None, machine)
    assert finding.severity == "error"
    assert program in finding.message


def test_a_java_home_without_java_is_named(machine: dict[str, str]) -> None:
    (finding,) = found("local[2]", None, {**machine, "JAVA_HOME": "/nowhere"})
    assert finding.message == "JAVA_HOME says /nowhere, and there is no bin/java in it"


class TestJars:
    @pytest.mark.parametrize("prefix", ["", "local:"])
    def test_those_that_are_not_there_are_named(self, machine: dict[str, str], tmp_path: Path, prefix: str) -> None:
        there = tmp_path / "delta-spark_1.jar"
        there.touch()
        (finding,) = found("local[2]", None, machine, jars=f"{prefix}{there},{prefix}{tmp_path}/gone.jar")
        assert finding.severity == "error"
        assert finding.message == f"Spark would be given jars that are not there: {tmp_path}/gone.jar"

    @pytest.mark.parametrize(
        ("lake", "lacking"),
        [
            ("hdfs://n/l", ["Delta Lake"]),
            ("s3a://b/l", ["Delta Lake", "S3"]),
            ("gs://b/l", ["Delta Lake", "Google Cloud Storage"]),
            ("abfss://c@a/l", ["Delta Lake", "Azure"]),
        ],
    )
    def test_what_nothing_brings_is_warned_of(self, machine: dict[str, str], lake: str, lacking: list[str]) -> None:
        findings = found("local[2]", None, machine, replace(CONFIG, lake=lake), "")
        assert severities(findings) == ["warning"] * len(lacking)
        assert [what for what, finding in zip(lacking, findings, strict=True) if what in finding.message] == lacking

    def test_a_setting_that_another_one_hides_is_warned_of(self, machine: dict[str, str], tmp_path: Path) -> None:
        jar = tmp_path / "delta-spark_1.jar"
        jar.touch()
        (finding,) = found("local[2]", None, machine, replace(CONFIG, spark_conf={"spark.jars": "/a.jar"}), str(jar))
        assert finding.severity == "warning"
        assert "spark.jars of spark.conf has no effect" in finding.message

    def test_jars_of_the_file_that_go_on_beside_the_log_store_are_hidden_by_nothing(
        self, machine: dict[str, str], tmp_path: Path
    ) -> None:
        (tmp_path / "delta-spark_1.jar").touch()
        config = replace(CONFIG, lake="/l", spark_conf={"spark.jars": f"{tmp_path}/delta-spark_1.jar, https://j/b.jar"})
        assert found("local[2]", None, machine, config, spark_jars.jars("/l", machine, config.spark_conf)) == []

    @pytest.mark.parametrize("lake", ["/l", "s3a://b/l"])
    def test_applications_of_the_drivers_image_have_their_jar_there(
        self, machine: dict[str, str], tmp_path: Path, lake: str
    ) -> None:
        for name in ("delta-spark_1.jar", "s3a/hadoop-aws-3.jar", "s3a/bundle-2.jar"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        machine |= {"TIDEMARK_SPARK_JARS": str(tmp_path), "TIDEMARK_SPARK_APPS": "local:/of/the/image"}
        config = replace(CONFIG, lake=lake)
        jars = spark_jars.jars(lake, machine, {}) or ""
        assert "local:/of/the/image/log_store/tidemark-log-store.jar" in jars.split(",")
        assert found("local[2]", None, machine, config, jars) == []
        del machine["TIDEMARK_SPARK_APPS"]
        (tmp_path / "delta-spark_1.jar").unlink()
        (gone,) = found("local[2]", None, machine, config, f"{jars},/not/{spark_jars.LOG_STORE}")
        assert f"are not there: {tmp_path}/delta-spark_1.jar, /not/" in gone.message

    @pytest.mark.parametrize("way", ["spark.conf", "spark-defaults.conf", "Spark's own", "--jars", "a server"])
    def test_spark_may_have_them_in_many_ways(self, machine: dict[str, str], tmp_path: Path, way: str) -> None:
        config, jars = CONFIG, ""
        if way == "spark.conf":
            config = replace(CONFIG, spark_conf={"spark.jars": "/opt/delta.jar"})
        elif way == "spark-defaults.conf":
            (tmp_path / "spark-defaults.conf").write_text("# spark.jars.packages=not\nspark.jars  /opt/delta.jar\n")
            machine["SPARK_CONF_DIR"] = str(tmp_path)
        elif way == "a server":
            jars = "https://jars.example/delta-spark_1.jar"
        else:
            folder = tmp_path / ("spark/jars" if way == "Spark's own" else "jars")
            folder.mkdir(parents=True)
            (folder / "delta-spark_1.jar").touch()
            jars = str(folder / "delta-spark_1.jar") if way == "--jars" else ""
        assert found("local[2]", None, machine, config, jars) == []

    def test_packages_that_every_application_asks_ivy_for_are_a_warning(self, machine: dict[str, str]) -> None:
        config = replace(CONFIG, spark_conf={"spark.jars.packages": delta_jars().roots[0]})
        (finding,) = found("local[2]", None, machine, config, "")
        assert finding.severity == "warning"
        assert "`tidemark jars`" in finding.remedy

    @pytest.mark.parametrize(("lake", "command"), [("/l", "`tidemark jars`"), ("s3a://b/l", "`tidemark jars s3`")])
    def test_what_is_missing_is_fetched_by_a_command(self, machine: dict[str, str], lake: str, command: str) -> None:
        findings = found("local[2]", None, machine, replace(CONFIG, lake=lake), "")
        assert findings
        assert all(command in finding.remedy for finding in findings)

    def test_whose_variable_is_not_set_is_told_so(self, machine: dict[str, str]) -> None:
        """A command line's process may have fewer than Airflow's tasks."""
        (without,) = found("local[2]", None, machine, jars="")
        (with_one,) = found("local[2]", None, {**machine, "TIDEMARK_SPARK_JARS": "/elsewhere"}, jars="")
        assert "TIDEMARK_SPARK_JARS is not set here" in without.message
        assert "is not set" not in with_one.message


class TestVersions:
    @pytest.mark.parametrize(
        ("core", "delta", "severity", "said"),
        [
            ("4.1.4", "delta-spark_4.1_2.13-4.4.0.jar", "", ""),
            (
                "4.1.4",
                "delta-spark_4.0_2.13-4.4.0.jar",
                "error",
                "Delta 4.4.0 is made for Spark 4.0, and this is Spark 4.1",
            ),
            ("3.5.6", "delta-spark_2.13-3.3.2.jar", "error", "Spark 3.5.6 is too old"),
            (
                "4.0.2",
                "delta-spark_2.13-4.0.0-amzn-0.jar",
                "note",
                "Delta 4.0.0-amzn-0 is not the version that Tidemark is built for (4.4.0)",
            ),
        ],
    )
    def test_what_jars_say_of_them_is_checked(
        self, machine: dict[str, str], core: str, delta: str, severity: str, said: str
    ) -> None:
        folder = Path(machine["SPARK_HOME"]) / "jars"
        folder.mkdir(parents=True)
        for jar in (f"spark-core_2.13-{core}.jar", delta):
            (folder / jar).touch()
        findings = found("local[2]", None, machine, jars="")
        assert [finding.severity for finding in findings] == ([severity] if severity else [])
        assert all(said in finding.message for finding in findings)

    def test_a_driver_in_the_cluster_has_a_spark_of_its_own(self, machine: dict[str, str]) -> None:
        folder = Path(machine["SPARK_HOME"]) / "jars"
        folder.mkdir(parents=True)
        (folder / "spark-core_2.13-3.5.6.jar").touch()
        config = replace(CONFIG, spark_conf=PYTHON)
        assert found("yarn", "cluster", {**machine, **HADOOP}, config) == []


def test_spark_defaults_are_read_as_java_reads_them(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.a 1\n  ! spark.b 1\nspark.c 1\nspark.d=2 3\n spark.e\t: 4 \nspark.f.g = x=y\nother 5\nspark.h\n"
    )
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path)}) == {
        "spark.c": "1",
        "spark.d": "2 3",
        "spark.e": "4",
        "spark.f.g": "x=y",
    }
    assert spark_defaults({"SPARK_CONF_DIR": str(tmp_path / "nowhere")}) == {}


class TestTheWayToTheCluster:
    def test_a_master_that_answers_on_this_machine_is_sound(self, machine: dict[str, str], master: str) -> None:
        local = {**machine, "SPARK_LOCAL_IP": "127.0.0.1"}
        assert found(master, "client", local, replace(CONFIG, lake="/lake")) == []

    def test_one_of_two_masters_has_to_answer(self, machine: dict[str, str], master: str) -> None:
        assert found(f"{master},{ELSEWHERE}:7077", "client", machine) == []

    def test_a_master_that_is_down_keeps_no_source_from_being_drained(self, machine: dict[str, str]) -> None:
        (finding,) = found(f"spark://{ELSEWHERE}:7077", "client", machine)
        assert finding.severity == "warning"
        assert f"spark://{ELSEWHERE}:7077 does not answer" in finding.message

    @pytest.mark.parametrize(
        ("conf", "variable", "said"),
        [
            ({}, "127.0.0.1", "SPARK_LOCAL_IP=127.0.0.1"),
            ({"spark.driver.host": "localhost"}, "10.1.2.3", "spark.driver.host=localhost"),
            ({"spark.driver.host": "10.1.2.3"}, "127.0.0.1", ""),
            ({}, "10.1.2.3", ""),
        ],
    )
    def test_a_driver_that_no_executor_reaches_is_refused(
        self, machine: dict[str, str], conf: dict[str, str], variable: str, said: str
    ) -> None:
        environment = {**machine, **HADOOP, "SPARK_LOCAL_IP": variable}
        config = replace(CONFIG, spark_conf=conf)
        of_standalone = [
            f for f in found(f"spark://{ELSEWHERE}:7077", "client", environment, config) if said in f.message
        ]
        assert ("error" in severities(of_standalone)) == bool(said)
        of_yarn = found("yarn", "client", environment, config)
        assert severities(of_yarn) == (["warning"] if said else []), "its machines may be this one"
        assert found("yarn", "cluster", environment, replace(CONFIG, spark_conf={**conf, **PYTHON})) == []

    def test_a_driver_elsewhere_whose_python_nobody_chose_is_warned_of(self, machine: dict[str, str]) -> None:
        (finding,) = found("yarn", "cluster", {**machine, **HADOOP})
        assert finding.severity == "warning"
        assert "does not name its Python" in finding.message

    @pytest.mark.parametrize("lake", ["/lake", "file:///lake"])
    def test_a_lake_on_a_disk_and_machines_elsewhere_are_warned_of(self, machine: dict[str, str], lake: str) -> None:
        (finding,) = found("k8s://https://host:443", "client", machine, replace(CONFIG, lake=lake))
        assert finding.severity == "warning"
        assert "every machine of the cluster must see the same folder" in finding.message


def test_names_in_a_catalogue_that_ends_with_the_driver_are_said(machine: dict[str, str]) -> None:
    def of(conf: dict[str, str]) -> list[Finding]:
        config = replace(CONFIG, spark_conf=conf)
        said = spark_findings(config, SparkConnection("local[2]"), machine)
        return [finding for finding in said if "catalogue" in finding.message]

    named = {"spark.tidemark.catalogue": "main.{schema}"}
    (finding,) = of(named)
    assert finding.severity == "warning"
    assert of({}) == []
    assert of({**named, "spark.sql.catalog.main": "org.example.Catalog"}) == []
    assert of({**named, "spark.sql.catalogImplementation": "hive"}) == []
