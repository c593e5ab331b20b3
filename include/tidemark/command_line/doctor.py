"""Checks everything around a pipeline and prints a line for each: ok, or what to do. It changes nothing.

Python, Airflow, Java, Spark, jars, pipeline files; of a pipeline also connections, source, slot, ledger, lake.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidemark.capture.preflight.airflow_findings import installed_airflow, this_installation
from tidemark.command_line import bug_report, screen
from tidemark.command_line.invocation import Invocation, LookUp, pipelines_folder
from tidemark.config import file_reader
from tidemark.errors import PipelinesNotFound, TidemarkError
from tidemark.spark_submit import jar_versions, spark_jars
from tidemark.spark_submit.delta_version import delta_version, minor, refusal
from tidemark.spark_submit.spark_connection import PROGRAMS, SparkConnection
from tidemark.spark_submit.spark_defaults import spark_defaults, spark_version
from tidemark.storage import commit_safety

OK: Final = "ok"
_OLDEST_JAVA: Final = 17
_CHECKS: Final = {"source": "source", "ledger": "ledger", "lake": "lake", "slot": "slot", "spark": "Spark"}


@dataclass(frozen=True, slots=True)
class Line:
    """`do` is empty where all is well."""

    what: str
    said: str
    do: str = ""
    severity: str = OK


def of_machine(options: argparse.Namespace) -> int:
    return _print(list(_machine()))


def doctor(called: Invocation) -> int:
    if called.options.report or called.options.json:
        return bug_report.bug_report(called)
    return _print([*_machine(), *_pipeline(called)])


def _print(lines: list[Line]) -> int:
    """Exit status 1 if anything has to be done, 3 if something should."""
    words = {OK: "ok", "warning": "warning", "red": "WRONG"}
    width = max(len(line.what) for line in lines)
    for line in lines:
        screen.say(f"{line.what:{width}}  {words[line.severity]:7}  {line.said}")
        if line.do:
            screen.say(f"{'':{width}}           -> {line.do}")
    worst = {line.severity for line in lines}
    return 1 if "red" in worst else 3 if "warning" in worst else 0


def _machine() -> Iterator[Line]:
    python = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < (3, 11)
    yield Line("Python", f"{python} in {sys.prefix}", "Use Python 3.11 or newer" if old else "", "red" if old else OK)
    yield from _airflow()
    yield _java()
    yield from _spark()
    yield _pipelines()


def _airflow() -> Iterator[Line]:
    airflow = installed_airflow()
    if airflow is None:
        yield Line("Airflow", "not in this Python environment", "Run doctor where Airflow's tasks run", "warning")
    findings = this_installation()
    for finding in findings:
        yield Line("Airflow", finding.message, finding.remedy, "red" if finding.severity == "error" else OK)
    for provider in ("apache-spark", "postgres") if airflow else ():
        try:
            version(f"apache-airflow-providers-{provider}")
        except PackageNotFoundError:
            do = f"pip install apache-airflow-providers-{provider}"
            yield Line("Airflow", f"{airflow}, without its provider {provider}", do, "red")
            return
    if airflow and not findings:
        yield Line("Airflow", airflow)


def _java() -> Line:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    install = f"Install Java {_OLDEST_JAVA}, and set JAVA_HOME to its folder"
    if java is None or not Path(java).is_file():
        return Line("Java", f"JAVA_HOME says {home}, and has no bin/java" if home else "not found", install, "red")
    said = bug_report.java_version(java)
    number = re.search(r'"(\d+)', said)
    if number is None or int(number[1]) < _OLDEST_JAVA:
        return Line("Java", said, install, "red")
    return Line("Java", said)


def _spark() -> Iterator[Line]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    spark, program = spark_version(os.environ), shutil.which(PROGRAMS[0], path=path)
    known = ", ".join(jar_versions.SPARKS)
    if spark is None or program is None:
        newest = jar_versions.NEWEST_SPARK
        yield Line("Spark", "not found", f"pip install 'pyspark=={newest}.*', or set SPARK_HOME", "red")
        return
    if (reason := refusal(spark, None)) is not None:
        yield Line("Spark", spark, reason, "red")
    elif minor(spark) not in jar_versions.SPARKS:
        yield Line("Spark", spark, f"Use one of {known}: others were not tried", "warning")
    else:
        yield Line("Spark", spark)
    settings = spark_defaults(os.environ)
    named, fetched = os.environ.get(spark_jars.JARS_VARIABLE), spark_jars.fetched(os.environ)
    if named:
        place = Path(re.sub(f"^{spark_jars.EVERYWHERE}/*", "/", named))
        jars = sorted(jar.name for jar in place.glob("delta-spark*.jar")) if place.is_dir() else named.split(",")
        do = (
            ""
            if any("delta-spark" in jar for jar in jars)
            else f"No delta-spark*.jar is there: tidemark jars --into {place}"
        )
        delta = delta_version(jars)
        do = do or refusal(spark, delta) or ""
        said = f"{spark_jars.JARS_VARIABLE}={named}"
        if delta is not None and not delta.is_known:
            said += f", Delta {delta.version}: tables are written by its public API, which is slower"
        yield Line("Delta's jars", said, do, "red" if do else OK)
    elif spark_jars.has_delta(settings, os.environ):
        yield Line("Delta's jars", "Spark has them by itself or by a setting")
    elif fetched is not None:
        yield Line("Delta's jars", f"Delta {jar_versions.DELTA} in {fetched}")
    else:
        yield Line("Delta's jars", "not there", "tidemark jars", "red")


def _pipelines() -> Line:
    try:
        folder = pipelines_folder()
    except PipelinesNotFound as unset:
        return Line("pipeline files", str(unset.facts["where"]), "tidemark init", "warning")
    configs, problems = file_reader.read_all(folder)
    if problems:
        return Line("pipeline files", f"{problems[0]}", f"Correct {problems[0].path}", "red")
    names = ", ".join(config.pipeline for config in configs)
    return (
        Line("pipeline files", f"{names} in {folder}")
        if names
        else Line("pipeline files", f"none in {folder}", "tidemark init", "warning")
    )


def _pipeline(called: Invocation) -> Iterator[Line]:
    config = called.config
    yield Line("pipeline", f"{config.pipeline}: {config.path}")
    missing = False
    wanted = (config.source_connection, config.ledger_connection, config.spark_connection, config.lake_connection)
    for name in filter(None, wanted):
        is_database = name in (config.source_connection, config.ledger_connection)
        line = _connection(called.look_up, name, is_database=is_database)
        missing = missing or (line.severity == "red" and name != config.spark_connection)
        yield line
    if missing:
        return
    yield from _preflight(called)


def _connection(look_up: LookUp, name: str, *, is_database: bool) -> Line:
    try:
        connection = look_up(name)
        if is_database:
            connection.conninfo()
    except TidemarkError as wrong:
        remedy = wrong.remedy.format(**wrong.facts)
        return Line(f"connection {name}", wrong.happened.format(**wrong.facts), remedy, "red")
    return Line(f"connection {name}", connection.conn_type)


def _preflight(called: Invocation) -> Iterator[Line]:
    """What preflight finds without changing anything; a subject of which it finds nothing is well."""
    from tidemark.capture.preflight.preflight_report import preflight

    config = called.config
    spark: SparkConnection | None = None
    with suppress(TidemarkError):
        spark = called.look_up(config.spark_connection).spark_connection()
    try:
        run = called.run("doctor")
    except TidemarkError as wrong:
        yield Line("lake", wrong.happened.format(**wrong.facts), wrong.remedy.format(**wrong.facts), "red")
        return
    jars = None  # of Delta's a line was said
    if urlsplit(run.config.lake).scheme not in commit_safety.FILES:
        jars = spark_jars.jars(run.config.lake, os.environ, run.config.spark_conf) or ""
    report = preflight(run, spark=spark, jars=jars, act=False, says=["ledger_stays"])
    severities = {"error": "red", "table": "red", "warning": "warning"}
    wrong_checks = set()
    said = this_installation()  # by _airflow
    for finding in report.findings:
        if finding in said:
            continue
        if finding.severity in severities:
            wrong_checks.add(finding.check)
            yield Line(finding.check, finding.message, finding.remedy, severities[finding.severity])
        elif finding.message.startswith("Would "):
            wrong_checks.add(finding.check)
            yield Line(finding.check, finding.message, f"tidemark preflight {config.pipeline}", "warning")
    unseen = {"slot"} if "source" in wrong_checks else set()
    for check, name in _CHECKS.items():
        if check not in wrong_checks | unseen:
            yield Line(name, "as it should be")
