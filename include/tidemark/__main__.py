"""`tidemark preflight|status|unpark|forget FILE …`: what the DAGs do and know, on a terminal.

    preflight FILE [--look]   look at everything and bring about what the first run needs; --look changes nothing,
                              --adopt-slot takes an existing slot and publication for this pipeline's own, once
    status FILE               where the pipeline stands, and what needs somebody; --all: each table; --json
    unpark FILE TABLE         let the next run apply all staged batches of a parked table
    forget FILE TABLE         show a table no more that is captured no more; its Delta tables stay

Exit status 0: as it should be; 1: something needs somebody, and it was said what; 2: the
command line was not understood.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

from tidemark import config_file
from tidemark.config import PipelineConfig
from tidemark.connections import Connection, look_up
from tidemark.errors import ConnectionInvalid, ConnectionMissing, TidemarkError, UnexpectedError
from tidemark.run import Run
from tidemark.spark_connection import SparkConnection
from tidemark.unexpected import quotes_nothing

LookUp = Callable[[str], Connection]


def main(arguments: Sequence[str] | None = None, *, look_up: LookUp = look_up) -> int:
    options = _parser().parse_args(arguments)
    try:
        return int(quotes_nothing()(_run)(options, look_up))
    except UnexpectedError as unforeseen:
        print("".join(traceback.format_tb(unforeseen.__traceback__)), unforeseen, sep="", file=sys.stderr)
        return 1
    except TidemarkError as error:
        print(error, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace, look_up: LookUp) -> int:
    return int(options.command(config_file.load(options.file), options, look_up))


def _with_lake(config: PipelineConfig, look_up: LookUp) -> PipelineConfig:
    """The pipeline with what the connection of its lake holds."""
    if config.lake_connection is None:
        return config
    return dataclasses.replace(config, lake_access=look_up(config.lake_connection).lake_access(config.lake))


def _preflight(config: PipelineConfig, options: argparse.Namespace, look_up: LookUp) -> int:
    from tidemark.capture.preflight import preflight

    try:
        spark = look_up(config.spark_connection).spark_connection()
    except (ConnectionMissing, ConnectionInvalid):
        spark = SparkConnection("yarn")  # as the Spark hook resolves it
    if config.mask_salt_connection is not None:
        look_up(config.mask_salt_connection).salt()
    somebody = f"preflight/{socket.gethostname()}/{os.getpid()}"
    run = Run(
        _with_lake(config, look_up),
        source=look_up(config.source_connection).conninfo(),
        ledger=look_up(config.ledger_connection).conninfo(),
        run_id=somebody,
        holder=somebody,
    )
    report = preflight(
        run,
        spark=spark,
        act=not options.look,
        adopt_slot=options.adopt_slot,
    )
    print(report)
    return 1 if report.errors or report.table_errors else 0


def _status(config: PipelineConfig, options: argparse.Namespace, look_up: LookUp) -> int:
    from tidemark.capture import status_text
    from tidemark.capture.status import read_status

    def conninfo(connection: str) -> str | TidemarkError:
        try:
            return look_up(connection).conninfo()
        except TidemarkError as wrong:
            return wrong

    with suppress(TidemarkError):  # then the lake is what cannot be seen
        config = _with_lake(config, look_up)
    status = read_status(config, source=conninfo(config.source_connection), ledger=conninfo(config.ledger_connection))
    if options.json:
        print(json.dumps(status_text.to_json(status), indent=2))
    else:
        print(status_text.text(status, everything=options.all))
    return 1 if status.health.worst == "red" else 0


def _unpark(config: PipelineConfig, options: argparse.Namespace, look_up: LookUp) -> int:
    from tidemark.capture.by_hand import unpark

    config = _with_lake(config, look_up)
    sentence, is_done = unpark(
        config, options.table, ledger=look_up(config.ledger_connection).conninfo(), anew=options.anew
    )
    print(sentence)
    return 0 if is_done else 1


def _forget(config: PipelineConfig, options: argparse.Namespace, look_up: LookUp) -> int:
    from tidemark.capture.by_hand import forget

    sentence, is_done = forget(config, options.table, ledger=look_up(config.ledger_connection).conninfo())
    print(sentence)
    return 0 if is_done else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidemark", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="preflight|status|unpark|forget")
    preflight = commands.add_parser("preflight", help="look at everything and bring about what the first run needs")
    how = preflight.add_mutually_exclusive_group()
    how.add_argument("--look", action="store_true", help="create and change nothing")
    how.add_argument(
        "--adopt-slot",
        action="store_true",
        help="slot and publication exist, and are this pipeline's from now on: nothing else reads the slot",
    )
    status = commands.add_parser("status", help="where the pipeline stands")
    unpark = commands.add_parser("unpark", help="let the next run apply a parked table's batches")
    status.add_argument("--all", action="store_true", help="every table, and everything in full")
    status.add_argument("--json", action="store_true", help="all of it for programs")
    forget = commands.add_parser("forget", help="show a table no more that is captured no more")
    functions = ((preflight, _preflight), (status, _status), (unpark, _unpark), (forget, _forget))
    for command, function in functions:
        command.add_argument("file", help="pipeline file, for example include/pipelines/shop.yaml")
        command.set_defaults(command=function)
    for command in (unpark, forget):
        command.add_argument("table", help="schema.table")
    unpark.add_argument("--anew", action="store_true", help="both Delta tables were removed: begin with empty ones")
    return parser


def console() -> None:
    """What the installed command `tidemark` calls."""
    sys.exit(main())


if __name__ == "__main__":
    console()
