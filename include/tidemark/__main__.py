"""Runs the command line, `tidemark COMMAND PIPELINE …`: it parses the arguments and calls the command's function.

    status     where the pipeline stands, and what needs somebody; --all: each table
    tables     every table, or those of a pattern, or all that is known of one
    positions  confirmed, applied, staged and the source, and how far they are apart
    plan       what the next merge would do
    pipelines  every pipeline file of the folder (no PIPELINE)
    init       write the files of a new pipeline, and the SQL for the source's administrator
    doctor     check everything around a pipeline, or without one this machine: ok, or what to do; --report: everything
               that a bug report needs, and no secret
    preflight  check everything and create what the first run needs; --look changes nothing, but an empty ledger
               database gets its schema; --adopt-slot takes an existing slot and publication for this pipeline's own,
               once; --staging-is-lost goes on, once, in a lake that lost its staging; --sql prints the grants for the
               source's administrator, and checks nothing
    migrate    bring the ledger's schema up to date, as preflight does where its role may; --look only says from which
               version to which, --connection names one whose role owns the schema
    ledger     `ledger rebuild PIPELINE` brings a ledger that was lost back from the lake, as the next run would
    upgraded   say that pg_upgrade made the source's server anew and kept the slot: the capture continues there, and a
               verify compares every table and repairs what differs
    run        start a capture now
    backfill   start the DAG that reads the rows of tables that need it, or of those named
    replay     start the DAG that makes tables as of a moment, or makes them anew
    verify     start the DAG that proves that tables equal their source
    trigger    print, with --sql, the script of an event trigger that writes definitions into the stream;
               --remove: the one that removes it
    pause      merge nothing of a table until it is resumed; its changes are staged, the others go on
    resume     let the next run apply what was staged of a paused table
    unpark     let the next run apply all staged batches of a parked table
    forget     stop showing a table that is no longer captured; its Delta tables stay
    jars       fetch the jars that Spark needs for Delta, once for this Python environment (no PIPELINE)

PIPELINE is the path of its file, or its name. Exit status 0: as it should be; 3: something may become wrong, or ends by
itself; 1: something needs somebody, and it was said what; 2: the command line was not understood.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from tidemark.capture.preflight.airflow_findings import installed
from tidemark.command_line import (
    changing_commands,
    completion,
    doctor,
    init_command,
    jars_command,
    showing_commands,
)
from tidemark.command_line.invocation import Invocation, LookUp, find_file
from tidemark.config import file_reader
from tidemark.config.airflow_connections import look_up
from tidemark.errors import TidemarkError, UnexpectedError
from tidemark.spark_submit.jar_versions import OF_STORES, SPARKS
from tidemark.unexpected_errors import hides_foreign_texts
from tidemark.wording import closest

Command = Callable[[Invocation], int]

READER_IS_GONE: Final = 128 + signal.SIGPIPE
STOPPED_BY_HAND: Final = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None, *, look_up: LookUp = look_up) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(hides_foreign_texts()(_run)(options, look_up))
    except UnexpectedError as unforeseen:
        print("".join(traceback.format_tb(unforeseen.__traceback__)), unforeseen, sep="", file=sys.stderr)
        return 1
    except TidemarkError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return STOPPED_BY_HAND


def _run(options: argparse.Namespace, look_up: LookUp) -> int:
    try:
        if options.command is init_command.init:
            status = init_command.init(options, look_up)
        elif getattr(options, "pipeline", None) is not None:
            config = file_reader.load(find_file(options.pipeline))
            status = int(options.command(Invocation(config, options, look_up)))
        else:
            status = int(getattr(options, "without_pipeline", options.command)(options))
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough, as in `tidemark status shop | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_IS_GONE
    return int(status)


def _parser() -> argparse.ArgumentParser:
    document = __doc__ or ""
    parser = _CommandParser(
        prog="tidemark",
        description=document.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tidemark {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_CommandParser)

    def add(name: str, command: Command, summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        added.add_argument("pipeline", help="the pipeline's name, or the path of its file")
        added.set_defaults(command=command)
        return added

    status = add("status", showing_commands.status, "where the pipeline stands, and what needs somebody")
    status.add_argument("--all", action="store_true", help="every table, and everything in full")
    status.add_argument(
        "--watch", nargs="?", type=float, const=5.0, metavar="SECONDS", help="again and again, until Ctrl-C"
    )
    tables = add("tables", showing_commands.tables, "every table, or those of a pattern, or all that is known of one")
    tables.add_argument("pattern", nargs="?", help="schema.table, or a pattern of it: 'shop.*'")
    tables.add_argument("--state", help="those of this state alone, for example parked")
    positions = add("positions", showing_commands.positions, "how far everything is, from the slot to the source")
    plan = add("plan", showing_commands.plan, "what the next merge would do")
    preflight = add(
        "preflight", changing_commands.preflight, "look at everything and bring about what the first run needs"
    )
    how = preflight.add_mutually_exclusive_group()
    how.add_argument(
        "--look", action="store_true", help="create and change nothing, but the schema of an empty ledger database"
    )
    how.add_argument(
        "--adopt-slot",
        action="store_true",
        help="slot and publication exist, and are this pipeline's from now on: nothing else reads the slot",
    )
    how.add_argument("--sql", action="store_true", help="print the grants for the source's administrator")
    preflight.add_argument(
        "--staging-is-lost",
        action="store_true",
        help="the lake is the right one, mounted and reached, and its staging is lost for good: go on without it",
    )
    migrate = add("migrate", changing_commands.migrate, "bring the ledger's schema up to date")
    migrate.add_argument("--look", action="store_true", help="say what would be done; exit status 3 if anything would")
    migrate.add_argument(
        "--connection", metavar="ID", help="Airflow connection of a role that owns the schema; else the pipeline's own"
    )
    ledger = commands.add_parser("ledger", help="bring back from the lake what a lost ledger knew")
    ledger.add_argument("deed", choices=("rebuild",), help="register again what staging has, and the merges' results")
    ledger.add_argument("pipeline", help="the pipeline's file, or its name")
    ledger.set_defaults(command=changing_commands.rebuild_ledger)
    add(
        "upgraded",
        changing_commands.upgraded,
        "continue on the server that pg_upgrade made of the source, with the slot it kept",
    )
    verify = add("verify", changing_commands.verify, "start the DAG that proves that tables equal their source")
    verify.add_argument("tables", nargs="*", metavar="table", help="schema.table; without one, every table")
    verify.add_argument("--share", default="1", help="how much of each: 1 for all, or for example 1/30")
    verify.add_argument("--repair", action="store_true", help="write what the source has over what differs")
    trigger = add("trigger", changing_commands.trigger, "print the script of the source's event trigger")
    trigger.add_argument("--sql", action="store_true", required=True, help="as SQL, for a superuser of the source")
    trigger.add_argument("--remove", action="store_true", help="the script that removes it")
    unpark = add("unpark", changing_commands.unpark, "let the next run apply a parked table's batches")
    pause = add("pause", changing_commands.pause, "merge nothing of a table until it is resumed")
    resume = add("resume", changing_commands.resume, "let the next run apply what was staged of a paused table")
    forget = add("forget", changing_commands.forget, "stop showing a table that is no longer captured")
    for of_table in (unpark, pause, resume, forget):
        of_table.add_argument("table", help="schema.table")
    ways = unpark.add_mutually_exclusive_group()
    ways.add_argument("--anew", action="store_true", help="both Delta tables were removed: begin with empty ones")
    ways.add_argument(
        "--past", action="store_true", help="what is staged cannot be read: go on behind it, by a backfill"
    )
    add("run", changing_commands.run, "start a capture now")
    backfill = add("backfill", changing_commands.backfill, "start the DAG that reads the rows of tables that need it")
    backfill.add_argument("tables", nargs="*", metavar="table", help="schema.table; without one, all that need it")
    replay = add("replay", changing_commands.replay, "start the DAG that makes tables anew, or as of a moment")
    replay.add_argument("step", choices=("as-of", "rebuild", "staged"))
    replay.add_argument("tables", nargs="+", metavar="table", help="schema.table")
    replay.add_argument("--moment", help="of as-of: an LSN, or a time with its zone")
    report = commands.add_parser("doctor", help="check everything around a pipeline: ok, or what to do")
    report.add_argument("pipeline", nargs="?", help="the pipeline's file, or its name; without it, this machine alone")
    report.add_argument("--report", action="store_true", help="everything that a bug report needs, and no secret")
    report.set_defaults(command=doctor.doctor, without_pipeline=doctor.of_machine)
    pipelines = commands.add_parser("pipelines", help="every pipeline file of the folder")
    pipelines.add_argument("--names", action="store_true", help="their names alone")
    pipelines.set_defaults(command=showing_commands.pipelines)
    _add_init(commands.add_parser("init", help="write the files of a new pipeline"))
    shell = commands.add_parser("completion", help="print the script by which a shell completes what is typed")
    shell.add_argument("shell", choices=completion.SHELLS)
    shell.set_defaults(command=lambda options: completion.completion(options, _options_of(commands)))
    jars = commands.add_parser("jars", help="fetch the jars that Spark needs for Delta, once")
    jars.add_argument(
        "stores", nargs="*", metavar="STORE", help=f"also those of a lake in a bucket: {', '.join(OF_STORES)}"
    )
    jars.add_argument("--into", metavar="FOLDER", help="elsewhere than in this Python environment")
    jars.add_argument("--spark", metavar="VERSION", help=f"for another Spark than this one's: {', '.join(SPARKS)}")
    jars.set_defaults(command=jars_command.jars)
    for shows in (status, tables, positions, plan, report, pipelines):
        shows.add_argument("--json", action="store_true", help="for programs")
    return parser


class _CommandParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A word that is no command is answered with the one that was meant."""
        typed = re.search(r"argument (?:COMMAND|\w+): invalid choice: '([^']*)'", message)
        choices = [name for action in self._actions for name in action.choices or ()]
        meant = closest(typed[1], map(str, choices)) if typed else None
        super().error(f"{message}; did you mean {meant}?" if meant else message)


def _version() -> str:
    return installed("tidemark-cdc") or "of a checkout"


def _add_init(init: argparse.ArgumentParser) -> None:
    init.add_argument("name", help="of the pipeline: its DAGs are called by it")
    init.add_argument("--source", metavar="ID", help="Airflow connection of the source; else asked for")
    init.add_argument("--tables", nargs="+", metavar="TABLE", help="schema.table, or patterns: 'shop.*'")
    init.add_argument("--lake", metavar="PLACE", help="a folder, or s3://…, gs://…, abfss://…")
    init.add_argument("--ledger", default="tidemark_ledger", metavar="ID", help="Airflow connection of the ledger")
    init.add_argument("--spark", default="spark_default", metavar="ID", help="Airflow connection of Spark")
    init.add_argument("--schedule", default="*/5 * * * *", help="cron of the capture")
    init.add_argument("--folder", help="of the pipeline files; else TIDEMARK_PIPELINES, or this folder")
    init.add_argument("--dags", metavar="FOLDER", help="of Airflow's DAGs; else Airflow's own")
    init.set_defaults(command=init_command.init)


def _options_of(commands: Any) -> dict[str, list[str]]:
    return {
        name: [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
        for name, parser in commands.choices.items()
    }


def console() -> None:
    """What the installed command `tidemark` calls."""
    sys.exit(main())


if __name__ == "__main__":
    console()
