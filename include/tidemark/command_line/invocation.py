"""Holds one call of the command line: the pipeline, the options, and the lookup of its connections.

A pipeline is given by its name or by the path of its file. The file of a name is in the folder that the DAGs read.
"""

from __future__ import annotations

import argparse
import dataclasses
import getpass
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tidemark.config import PipelineConfig, file_reader
from tidemark.config.airflow_connections import Connection
from tidemark.errors import PipelinesNotFound, PipelineUnknown, TidemarkError
from tidemark.ledger import migrations
from tidemark.ledger.connection import Ledger, open_ledger
from tidemark.observe.status import Status, read_status
from tidemark.run import Run
from tidemark.wording import closest

LookUp = Callable[[str], Connection]

# The environment variable with the folder of the pipeline files, and the folder without it, from a checkout's root.
PIPELINES_VARIABLE = "TIDEMARK_PIPELINES"
CHECKOUT = Path("include") / "pipelines"


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call for a pipeline. `config` has no secret of the lake before `with_lake`."""

    config: PipelineConfig
    options: argparse.Namespace
    look_up: LookUp

    def with_lake(self) -> PipelineConfig:
        """The configuration with the credentials of the lake's connection."""
        config = self.config
        if config.lake_connection is None:
            return config
        access = self.look_up(config.lake_connection).lake_access(config.lake)
        return dataclasses.replace(config, lake_access=access)

    @property
    def source(self) -> str:
        return self.look_up(self.config.source_connection).conninfo()

    @property
    def ledger(self) -> str:
        return self.look_up(self.config.ledger_connection).conninfo()

    def run(self, holder: str) -> Run:
        """The record of this call's work as `holder`."""
        return Run(self.with_lake(), source=self.source, ledger=self.ledger, run_id=holder, holder=holder)

    def read_status(self, *, of_lake: bool = True) -> Status:
        """The pipeline's status. If the lake's connection is missing, the status shows that the lake cannot be read."""
        config = self.config
        with suppress(TidemarkError):
            config = self.with_lake() if of_lake else config
        source, ledger = map(self._conninfo_or_error, (config.source_connection, config.ledger_connection))
        return read_status(config, source=source, ledger=ledger, of_lake=of_lake)

    def _conninfo_or_error(self, connection: str) -> str | TidemarkError:
        """The connection string, or the error. A status shows it like the error of a database that does not respond."""
        try:
            return self.look_up(connection).conninfo()
        except TidemarkError as error:
            return error

    @contextmanager
    def open_ledger(self) -> Iterator[Ledger]:
        with open_ledger(self.ledger, self.config.pipeline) as book:
            migrations.require(book.connection)
            yield book


def find_file(pipeline: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The file of a pipeline that is given by its name or as a path. Raises PipelineUnknown, which lists all
    pipelines, and PipelinesNotFound."""
    path = Path(pipeline)
    if path.exists() or os.sep in pipeline:
        return path
    folder = pipelines_folder(environment)
    if (folder / path).is_file():
        return folder / path
    files = {config.pipeline: Path(config.path) for config in file_reader.read_all(folder)[0]}
    files = {**{file.stem: file for file in file_reader.files(folder)}, **files}
    if pipeline in files:
        return files[pipeline]
    meant = closest(pipeline, files)
    hint = f" (did you mean {meant}?)" if meant else ""
    raise PipelineUnknown(
        pipeline=pipeline, known=f"{folder} has {', '.join(sorted(files)) or 'no pipeline file'}{hint}"
    )


def pipelines_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of the pipeline files. Raises PipelinesNotFound."""
    named = environment.get(PIPELINES_VARIABLE)
    folder = Path(named or CHECKOUT)
    if not folder.is_dir():
        where = f"{PIPELINES_VARIABLE} names {named}" if named else f"{PIPELINES_VARIABLE} is not set"
        raise PipelinesNotFound(where=where)
    return folder


def user_and_host() -> str:
    """The user and host of this call, to record who did something."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.geteuid())
    return f"{user}@{socket.gethostname()}"
