"""Fetches the jars that Spark needs, so that no run of a pipeline has to: `tidemark jars [s3|gcs|azure …]`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tidemark.command_line import screen
from tidemark.spark_submit import jar_versions, spark_jars
from tidemark.spark_submit.jar_download import fetch
from tidemark.spark_submit.spark_defaults import spark_version
from tidemark.wording import counted


def jars(options: argparse.Namespace) -> int:
    """Download the jars. Returns exit status 1 if this machine has no Spark for which Tidemark has jars."""
    if unknown := sorted(set(options.stores) - set(jar_versions.OF_STORES)):
        screen.say(f"There are no jars for {', '.join(unknown)}: known are {', '.join(jar_versions.OF_STORES)}.")
        return 2
    spark = options.spark or ".".join((spark_version(os.environ) or "").split(".")[:2])
    known = ", ".join(jar_versions.SPARKS)
    if spark not in jar_versions.SPARKS:
        found = f"Spark {spark}" if spark else "No Spark"
        screen.say(
            f"{found} was found here; there are jars for Spark {known}.",
            "Install pyspark in this environment, set SPARK_HOME, or name the version: tidemark jars --spark "
            f"{jar_versions.NEWEST_SPARK} --into FOLDER",
        )
        return 1
    if options.stores and spark != jar_versions.NEWEST_SPARK:
        screen.say(
            f"The jars for {', '.join(options.stores)} are made for the Hadoop {jar_versions.HADOOP} of Spark "
            f"{jar_versions.NEWEST_SPARK}, and this is Spark {spark}.",
            f"Give Spark those of its own Hadoop, beside what `tidemark jars` fetches: {spark_jars.JARS_VARIABLE}",
        )
        return 1
    default = spark_jars.fetched_folder(os.environ)
    into = Path(options.into) if options.into else default
    if into is None or (options.spark and not options.into):
        screen.say("With --spark, name a folder too: --into FOLDER")
        return 1
    for wanted in (jar_versions.delta_jars(spark), *(jar_versions.OF_STORES[store]() for store in options.stores)):
        new = fetch(wanted, into, os.environ)
        there = f"{counted(len(wanted.jars), 'jar')} for {wanted.what}"
        screen.say(f"{there}: {f'fetched {len(new)}, SHA-256 as published' if new else 'there already'}")
    screen.say(f"They lie in {into}")
    named = os.environ.get(spark_jars.JARS_VARIABLE)
    if into == default and not named:
        screen.say("Every pipeline that runs in this Python environment uses them. Nothing else is to be set.")
    elif named != str(into):
        screen.say(f"Set {spark_jars.JARS_VARIABLE}={into} for Airflow's tasks.")
    return 0
