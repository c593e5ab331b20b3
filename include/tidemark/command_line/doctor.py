"""Checks the environment of a pipeline, and prints a line for each part: ok, or a remedy. It changes nothing.

It checks Python, Airflow, Java, Spark, jars and pipeline files; for a pipeline also connections, source, slot, ledger
and lake.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidemark.capture.preflight.airflow_findings import installed, installed_airflow, this_installation
from tidemark.command_line import bug_report, screen
from tidemark.command_line.invocation import Invocation, LookUp, pipelines_folder
from tidemark.config import file_reader
from tidemark.errors import PipelinesNotFound, TidemarkError
from tidemark.findings import Finding
from tidemark.spark_submit import jar_versions, spark_jars
from tidemark.spark_submit.delta_version import delta_version, minor, refusal
from tidemark.spark_submit.spark_connection import PROGRAMS, SparkConnection
from tidemark.spark_submit.spark_defaults import spark_defaults, spark_version
from tidemark.storage import log_store_settings

_OLDEST_JAVA: Final = 17
_CHECKS: Final = {"source": "source", "ledger": "ledger", "lake": "lake", "slot": "slot", "spark": "Spark"}


# Severity of a finding -> the word in its line. A note means that nothing is wrong.
_WORDS: Final = {"error": "WRONG", "table": "WRONG", "warning": "warning", "note": "ok"}


def of_machine(options: argparse.Namespace) -> int:
    return _print(list(_machine()))


def doctor(called: Invocation) -> int:
    if called.options.report or called.options.json:
        return bug_report.bug_report(called)
    return _print([*_machine(), *_pipeline(called)])


def _print(findings: list[Finding]) -> int:
    """Print the findings. Returns exit status 1 if one must be remedied, 3 if one should be."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        screen.say(f"{finding.check:{width}}  {_WORDS[finding.severity]:7}  {finding.message}")
        if finding.remedy:
            screen.say(f"{'':{width}}           -> {finding.remedy}")
    words = {_WORDS[finding.severity] for finding in findings}
    return 1 if "WRONG" in words else 3 if "warning" in words else 0


def _machine() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding.note("Python", f"{python} in {sys.prefix}")
    yield from _airflow()
    yield _java()
    yield from _spark()
    yield _pipelines()


def _airflow() -> Iterator[Finding]:
    airflow = installed_airflow()
    if airflow is None:
        yield Finding.warning("Airflow", "not in this Python environment", "Run doctor where Airflow's tasks run")
    findings = this_installation()
    yield from (replace(finding, check="Airflow") for finding in findings)
    for provider in ("apache-spark", "postgres") if airflow else ():
        if installed(f"apache-airflow-providers-{provider}") is None:
            do = f"pip install apache-airflow-providers-{provider}"
            yield Finding.error("Airflow", f"{airflow}, without its provider {provider}", do)
            return
    if airflow and not findings:
        yield Finding.note("Airflow", airflow)


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    install = f"Install Java {_OLDEST_JAVA}, and set JAVA_HOME to its folder"
    if java is None or not Path(java).is_file():
        return Finding.error("Java", f"JAVA_HOME says {home}, and has no bin/java" if home else "not found", install)
    said = bug_report.java_version(java)
    number = re.search(r'"(\d+)', said)
    if number is None or int(number[1]) < _OLDEST_JAVA:
        return Finding.error("Java", said, install)
    return Finding.note("Java", said)


def _spark() -> Iterator[Finding]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    spark, program = spark_version(os.environ), shutil.which(PROGRAMS[0], path=path)
    known = ", ".join(jar_versions.SPARKS)
    if spark is None or program is None:
        newest = jar_versions.NEWEST_SPARK
        yield Finding.error("Spark", "not found", f"pip install 'pyspark=={newest}.*', or set SPARK_HOME")
        return
    if (reason := refusal(spark, None)) is not None:
        yield Finding.error("Spark", spark, reason)
    elif minor(spark) not in jar_versions.SPARKS:
        yield Finding.warning("Spark", spark, f"Use one of {known}: others were not tried")
    else:
        yield Finding.note("Spark", spark)
    settings = spark_defaults(os.environ)
    named, fetched = os.environ.get(spark_jars.JARS_VARIABLE), spark_jars.fetched(os.environ)
    if named:
        place = Path(re.sub(f"^{spark_jars.EVERYWHERE}/*", "/", named))
        jars = sorted(jar.name for jar in place.glob("delta-spark*.jar")) if place.is_dir() else named.split(",")
        delta = delta_version(jars)
        do = refusal(spark, delta)
        if not any("delta-spark" in jar for jar in jars):
            do = f"No delta-spark*.jar is there: tidemark jars --into {place}"
        said = f"{spark_jars.JARS_VARIABLE}={named}"
        if delta is not None and not delta.is_known:
            said += f", Delta {delta.version}: tables are written by its public API, which is slower"
        yield Finding.error("Delta's jars", said, do) if do else Finding.note("Delta's jars", said)
    elif spark_jars.has_delta(settings, os.environ):
        yield Finding.note("Delta's jars", "Spark has them by itself or by a setting")
    elif fetched is not None:
        yield Finding.note("Delta's jars", f"Delta {jar_versions.DELTA} in {fetched}")
    else:
        yield Finding.error("Delta's jars", "not there", "tidemark jars")


def _pipelines() -> Finding:
    try:
        folder = pipelines_folder()
    except PipelinesNotFound as unset:
        return Finding.warning("pipeline files", str(unset.facts["where"]), "tidemark init")
    configs, problems = file_reader.read_all(folder)
    if problems:
        return Finding.error("pipeline files", f"{problems[0]}", f"Correct {problems[0].path}")
    if not configs:
        return Finding.warning("pipeline files", f"none in {folder}", "tidemark init")
    return Finding.note("pipeline files", f"{', '.join(config.pipeline for config in configs)} in {folder}")


def _pipeline(called: Invocation) -> Iterator[Finding]:
    config = called.config
    yield Finding.note("pipeline", f"{config.pipeline}: {config.path}")
    missing = False
    wanted = (config.source_connection, config.ledger_connection, config.spark_connection, config.lake_connection)
    for name in filter(None, wanted):
        is_database = name in (config.source_connection, config.ledger_connection)
        line = _connection(called.look_up, name, is_database=is_database)
        missing = missing or (line.severity == "error" and name != config.spark_connection)
        yield line
    if missing:
        return
    yield from _preflight(called)


def _connection(look_up: LookUp, name: str, *, is_database: bool) -> Finding:
    try:
        connection = look_up(name)
        if is_database:
            connection.conninfo()
    except TidemarkError as wrong:
        return Finding.of(f"connection {name}", wrong)
    return Finding.note(f"connection {name}", connection.conn_type)


def _preflight(called: Invocation) -> Iterator[Finding]:
    """The findings of a preflight that changes nothing, and an "ok" for each subject without a finding."""
    from tidemark.capture.preflight.preflight_report import preflight

    config = called.config
    spark: SparkConnection | None = None
    with suppress(TidemarkError):
        spark = called.look_up(config.spark_connection).spark_connection()
    try:
        run = called.run("doctor")
    except TidemarkError as wrong:
        yield Finding.of("lake", wrong)
        return
    jars = None  # of Delta's a line was said
    if urlsplit(run.config.lake).scheme not in log_store_settings.FILES:
        jars = spark_jars.jars(run.config.lake, os.environ, run.config.spark_conf) or ""
    report = preflight(run, spark=spark, jars=jars, act=False, says=["ledger_stays"])
    wrong_checks = set()
    said = this_installation()  # by _airflow
    for finding in report.findings:
        if finding in said:
            continue
        if finding.severity != "note":
            wrong_checks.add(finding.check)
            yield finding
        elif finding.message.startswith("Would "):
            wrong_checks.add(finding.check)
            yield Finding.warning(finding.check, finding.message, f"tidemark preflight {config.pipeline}")
    unseen = {"slot"} if "source" in wrong_checks else set()
    for check, name in _CHECKS.items():
        if check not in wrong_checks | unseen:
            yield Finding.note(name, "as it should be")
