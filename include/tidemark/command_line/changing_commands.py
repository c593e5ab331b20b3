"""Runs the commands that change something (preflight, backfill, pause …), and prints the result of each.

The exit status is 0 if the command was carried out.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

from tidemark.command_line import screen
from tidemark.command_line.init_command import source_role
from tidemark.command_line.invocation import Invocation, user_and_host
from tidemark.errors import ConnectionInvalid, ConnectionMissing
from tidemark.ledger import migrations
from tidemark.ledger.connection import connect
from tidemark.observe import table_commands
from tidemark.run import Run
from tidemark.source.grants_sql import grants_sql
from tidemark.spark_submit import spark_jars
from tidemark.spark_submit.spark_connection import SparkConnection
from tidemark.wording import counted

_AIRFLOW_TIMEOUT_S: Final = 120


def preflight(called: Invocation) -> int:
    from tidemark.capture.preflight.preflight_report import Word, preflight

    config, look_up = called.config, called.look_up
    if called.options.sql:
        print(grants_sql(config, source_role(config, look_up)), end="")
        return 0
    try:
        spark = look_up(config.spark_connection).spark_connection()
    except (ConnectionMissing, ConnectionInvalid):
        spark = SparkConnection("yarn")  # as the Spark hook resolves it
    if config.mask_salt_connection is not None:
        look_up(config.mask_salt_connection).salt()
    run = called.run(f"preflight/{socket.gethostname()}/{os.getpid()}")
    jars = spark_jars.jars(run.config.lake, os.environ, run.config.spark_conf) or ""
    words: tuple[Word, ...] = ("adopt_slot", "staging_is_lost")
    says = [word for word in words if getattr(called.options, word)]
    report = preflight(run, spark=spark, jars=jars, act=not called.options.look, says=says)
    print(report)
    return 1 if report.errors or report.table_errors else 0


def migrate(called: Invocation) -> int:
    """Migrate the ledger's schema, with the pipeline's own connection or with one whose role owns the schema."""
    connection_id = called.options.connection or called.config.ledger_connection
    conninfo = called.look_up(connection_id).conninfo()
    if called.options.look:
        with connect(conninfo) as connection:
            migration = migrations.pending(connection)
        done = "would be brought"
    else:
        migration = migrations.migrate(conninfo)
        done = "was brought"
    if not migration.is_needed:
        screen.say(f"The ledger of connection {connection_id} is at version {migration.after}: nothing to do.")
        return 0
    screen.say(
        f"The ledger of connection {connection_id} {done} from {migration.origin} to version {migration.after}. Tasks "
        "of an older Tidemark are refused by it from then on, those of every pipeline that uses it."
    )
    return 3 if called.options.look else 0


def rebuild_ledger(called: Invocation) -> int:
    from tidemark.capture.continuity import ledger_rebuild

    holder = f"ledger/{socket.gethostname()}/{os.getpid()}"
    # The rebuild never connects to the source.
    rebuilt = ledger_rebuild.rebuild(
        Run(called.with_lake(), source="", ledger=called.ledger, run_id=holder, holder=holder)
    )
    generation = rebuilt.generation
    if generation is None:
        screen.say(f"The lake has no generation of pipeline {called.config.pipeline}: there is nothing to bring back.")
        return 1
    if not rebuilt.batches and not rebuilt.plans:
        screen.say(
            f"The ledger lacks nothing that the lake has: generation {generation.number} is staged up to "
            f"{generation.staged_lsn}."
        )
        return 0
    waiting = sum(rebuilt.unapplied.values())
    screen.say(
        f"Brought back {counted(rebuilt.batches, 'batch')} of {counted(rebuilt.tables, 'table')}, and the results of "
        f"{counted(rebuilt.plans, 'merge')}. Generation {generation.number} is staged up to {generation.staged_lsn}; "
        f"{counted(waiting, 'batch')} in {counted(len(rebuilt.unapplied), 'table')} wait for the next merge, which "
        "passes over those that the Delta tables have already.",
        "What no file in the lake has:",
        *(f"  {lost}" for lost in ledger_rebuild.NOT_IN_THE_LAKE),
        f"Now run the capture DAG ({called.config.pipeline}_capture).",
    )
    return 0


def upgraded(called: Invocation) -> int:
    """Continue on the upgraded server, and start a comparison of every table with it."""
    from tidemark.capture import pg_upgrade

    who = user_and_host()
    said, done = pg_upgrade.continue_upgraded(called.run(f"upgraded/{who}"), who=who)
    screen.say(said)
    return _trigger_verify(called, (), share="1", repair=True) if done else 1


def trigger(called: Invocation) -> int:
    """Print the script that creates or removes the event trigger, for an administrator of the source."""
    from tidemark.source import event_trigger

    if called.options.remove:
        print(event_trigger.drop_sql(called.config), end="")
    else:
        role = conninfo_to_dict(called.source).get("user") or getpass.getuser()
        print(event_trigger.create_sql(called.config, str(role)), end="")
    return 0


def unpark(called: Invocation) -> int:
    config = called.with_lake()
    options = called.options
    if options.past:
        return _print_outcome(*table_commands.pass_over(config, options.table, ledger=called.ledger))
    return _print_outcome(
        *table_commands.unpark(config, options.table, ledger=called.ledger, anew=options.anew, who=user_and_host())
    )


def pause(called: Invocation) -> int:
    return _print_outcome(
        *table_commands.pause(called.config, called.options.table, ledger=called.ledger, who=user_and_host())
    )


def resume(called: Invocation) -> int:
    return _print_outcome(*table_commands.resume(called.config, called.options.table, ledger=called.ledger))


def forget(called: Invocation) -> int:
    return _print_outcome(*table_commands.forget(called.config, called.options.table, ledger=called.ledger))


def verify(called: Invocation) -> int:
    """Trigger the verify DAG, which needs Spark and whose run belongs in Airflow's list of runs. Without Airflow on
    this machine, print the command."""
    options = called.options
    return _trigger_verify(called, _named(called), share=options.share, repair=options.repair)


def run(called: Invocation) -> int:
    """Start a capture now, in addition to its schedule."""
    return _trigger_dag(called, "capture", {}, f"`tidemark status {called.config.pipeline}` shows how it stands.")


def backfill(called: Invocation) -> int:
    """Start the backfill of the named tables, or of all that need one."""
    conf = {"tables": _named(called)} if called.options.tables else {}
    after = f"Its task `report` says what it did; `tidemark status {called.config.pipeline}` shows how far it is."
    return _trigger_dag(called, "backfill", conf, after)


def replay(called: Invocation) -> int:
    """Start a replay: it writes tables as of a moment next to the live tables, or rebuilds live tables."""
    options = called.options
    conf = {"step": options.step.replace("-", "_"), "tables": _named(called)}
    if options.step == "as-of" and not options.moment:
        screen.say("as-of needs a moment: --moment 16/B374D848, or --moment 2026-11-17T00:00:00+01:00")
        return 2
    if options.moment:
        conf["moment"] = options.moment
    return _trigger_dag(called, "replay", conf, "Its log says what each table became, and where it lies.")


def _named(called: Invocation) -> list[str]:
    """The tables of the command line in the ledger's spelling. Raises an error that suggests a name for an unknown
    table."""
    with called.open_ledger() as book:
        return [table_commands.row_of(book, called.config, table).table for table in called.options.tables]


def _trigger_verify(called: Invocation, names: Sequence[str], *, share: str, repair: bool) -> int:
    after = (
        "Its task `report` says what differs; when it is through, "
        f"`tidemark tables {called.config.pipeline}` shows what is proven."
    )
    return _trigger_dag(called, "verify", {"tables": [*names], "share": share, "repair": repair}, after)


def _trigger_dag(called: Invocation, kind: str, conf: dict[str, Any], after: str) -> int:
    """Trigger a DAG of the pipeline in Airflow. Without Airflow on this machine, print the command."""
    dag_id = f"{called.config.pipeline}_{kind}"
    command = ["airflow", "dags", "trigger", dag_id, *(["--conf", json.dumps(conf)] if conf else [])]
    if shutil.which(command[0]) is None:
        screen.say("There is no airflow on the path. Where there is one, type:", f"  {shlex.join(command)}")
        return 1
    triggered = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_AIRFLOW_TIMEOUT_S
    )
    if triggered.returncode != 0:
        last = next((line for line in reversed(triggered.stderr.splitlines()) if line.strip()), "it said nothing")
        screen.say(f"Airflow did not start it: {last}", f"  {shlex.join(command)}")
        return 1
    screen.say(f"{dag_id} is triggered. {after}")
    return 0


def _print_outcome(text: str, done: bool) -> int:
    screen.say(text)
    return 0 if done else 1
