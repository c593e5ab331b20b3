"""Defines every error that Tidemark raises on purpose, in one tree ordered by who must act.

Each leaf has two templates: `happened` for the facts, `remedy` for the action. They are filled with the keyword facts
given when it is raised, so no fact can be missing. `docs/errors.md` has one heading per leaf, and
`plugins/tidemark_airflow/failures.py` has Airflow retry by `Move`. No message contains a row's value.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from string import Formatter
from typing import Any, ClassVar

from tidemark.formats.error_record import ErrorFacts, ErrorRecord

# Parts of remedies for a table whose Delta tables cannot be continued. `observe.park_endings` makes commands of them.
REBUILD = (
    "If current's are gone and history is whole, trigger the replay DAG with `rebuild` for it and unpark the table: "
    "nothing is read from the source."
)
REPLAY = (
    "If history's newest commits are gone, trigger the replay DAG with `staged` for it: what staging still holds is "
    "applied once more, in new tables that take the place of these."
)
PASS_OVER = (
    "type `tidemark unpark --past`, which passes over what is staged of the table and keeps both Delta tables, and "
    "start a backfill of it once a capture run is through: history will lack the changes of these batches, current "
    "nothing."
)
FOLLOW = "Write `evolve: follow` for the table in the pipeline file: the next run builds it anew beside the old."
BEGIN_ANEW = (
    "remove both Delta tables, history and current, unpark the table with `--anew`, and start a backfill of it once a "
    "capture run is through."
)

# The end of the remedy for a table that could not be read.
NAME_IT = "Then start a backfill that names the table: none starts by itself until the table is marked anew."


class Move(StrEnum):
    """Whose move it is after the error."""

    RETRY = "RETRY"
    FIX_CONFIG = "FIX_CONFIG"
    FIX_SOURCE = "FIX_SOURCE"
    FIX_TARGET = "FIX_TARGET"
    BACKFILL = "BACKFILL"
    BUG = "BUG"


class TidemarkError(Exception):
    """Root of the tree; never raised itself."""

    move: ClassVar[Move]
    happened: ClassVar[str]
    remedy: ClassVar[str]
    # Whether an error during a table's merge is not the table's own. Then it does not count towards `park_after` (R6).
    is_of_no_table: ClassVar[bool] = False
    # Whether what a person has to do is done at the source, the ledger, the lake or in an Airflow connection, or may be
    # under way (a failover, the rotation of a password). A run that follows the source tries again while it lasts.
    may_end_meanwhile: ClassVar[bool] = False

    def __init__(self, **facts: Any) -> None:
        expected = self.fact_names()
        if set(facts) != expected:
            raise TypeError(f"{type(self).__name__} takes the facts {sorted(expected)}, got {sorted(facts)}")
        self.facts = facts
        happened = self.happened.format(**facts)
        # A text that ends with a newline ends with whole sentences.
        super().__init__(f"{happened}{'' if happened.endswith(chr(10)) else '. '}{self.remedy.format(**facts)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.facts))

    def as_facts(self) -> ErrorFacts:
        """The record from which `from_facts` makes an error with the same message."""
        return ErrorFacts(type(self).__name__, {name: str(fact) for name, fact in self.facts.items()})

    @staticmethod
    def from_facts(error: ErrorFacts) -> TidemarkError:
        """Raises KeyError if this version has no such error."""
        leaf = leaf_of(error.kind)
        if leaf is None:
            raise KeyError(error.kind)
        return leaf(**error.facts)

    def record(self) -> ErrorRecord:
        """The record of the error in results and ledger."""
        return ErrorRecord(type(self).__name__, self.move.value, str(self))

    @classmethod
    def fact_names(cls) -> set[str]:
        """The keyword facts that this leaf's two templates name."""
        fields = Formatter().parse(cls.happened + cls.remedy)
        return {name.partition(".")[0].partition("[")[0] for _, name, _, _ in fields if name}


def _rebuild(leaf: type[TidemarkError], facts: dict[str, Any]) -> TidemarkError:
    return leaf(**facts)


def leaves(of: type[TidemarkError] = TidemarkError) -> Iterator[type[TidemarkError]]:
    """Every error that can be raised: the classes of the tree that state what happened."""
    for child in of.__subclasses__():
        if child.__dict__.get("happened"):
            yield child
        else:
            yield from leaves(child)


def leaf_of(kind: str) -> type[TidemarkError] | None:
    """The leaf of that name; None if this version has no such error."""
    return next((leaf for leaf in leaves() if leaf.__name__ == kind), None)


def is_of_no_table(error: ErrorRecord) -> bool:
    leaf = leaf_of(error.kind)
    return leaf is not None and leaf.is_of_no_table


class RetryError(TidemarkError):
    """The same task, run again, is expected to succeed."""

    move = Move.RETRY


class ConfigError(TidemarkError):
    """The pipeline file, an Airflow connection or the Airflow set-up must change."""

    move = Move.FIX_CONFIG


class SourceError(TidemarkError):
    """Something at the source database must change."""

    move = Move.FIX_SOURCE


class TargetError(TidemarkError):
    """Something in the lake, its tables or the Spark set-up must change."""

    move = Move.FIX_TARGET


class BackfillError(TidemarkError):
    """Changes are gone or cannot be followed; the rows must be read again."""

    move = Move.BACKFILL


class BugError(TidemarkError):
    """An assumption of Tidemark does not hold; nothing was registered or merged."""

    move = Move.BUG


# --- the pipeline file and preflight ----------------------------------------------------------------------------------


class PipelineFileInvalid(ConfigError):
    happened = "{problems}"
    remedy = "Correct the pipeline file; docs/configuration.md lists every option."


class PipelinesNotFound(ConfigError):
    happened = "There is no folder of pipeline files: {where}"
    remedy = (
        "Set TIDEMARK_PIPELINES to the folder in which they lie, for every process of Airflow; "
        "a command also takes the path of a file."
    )


class PipelineUnknown(ConfigError):
    happened = "There is no pipeline {pipeline}: {known}"
    remedy = "Give one of these names, or the path of the pipeline's file."


class TableUnknown(ConfigError):
    happened = "Pipeline {pipeline} has no table {table}; it has {known}"
    remedy = "Give one of these names, as schema.table."


class BackfillFormInvalid(ConfigError):
    happened = "The form of the backfill of pipeline {pipeline} cannot be used: {problems}"
    remedy = "Trigger the DAG again with the fields {fields}; nothing was started."


class ConnectionMissing(ConfigError):
    may_end_meanwhile = True
    happened = 'The connection "{connection}" exists neither in the environment nor in Airflow'
    remedy = "Add it in Airflow (Admin, Connections), or set {variable} to its JSON or URI."


class ConnectionInvalid(ConfigError):
    happened = 'The connection "{connection}" cannot be used: {reason}'
    remedy = "Correct it in Airflow (Admin, Connections) or in the environment."


class TokenClientMissing(ConfigError):
    happened = "The login by a token of {provider} needs a Python package that is not here: {package}"
    remedy = "Install Tidemark's extra iam-{provider} where Airflow's tasks and the command `tidemark` run."


class TokenNotIssued(RetryError):
    happened = "{provider} issued no login token to this machine ({kind})"
    remedy = (
        "Give the machine an identity (instance profile, managed identity, service account) that may log in to the "
        "database; the retry asks again."
    )


class SshTunnelFailed(RetryError):
    happened = "No connection could be opened through the SSH host {host}: {detail}"
    remedy = (
        "As Airflow's user on a worker, `ssh -W SERVER:PORT HOST` must answer without a question; correct the SSH "
        "connection or the SSH host. The retry connects again."
    )


class MaskWithoutSalt(ConfigError):
    happened = "Columns of table {table} are masked with sha256, but there is no salt: {columns}"
    remedy = "Set mask_salt_connection in the pipeline file to a connection whose password is the salt."


class PreflightFailed(ConfigError):
    happened = "Preflight of pipeline {pipeline} found errors that must be corrected first ({count}):\n{findings}\n"
    remedy = "Each line says what to do; then run the DAG again, or `tidemark preflight {path}` to check again."


class PreflightWaits(RetryError):
    happened = "Preflight of pipeline {pipeline} could not be finished now ({count}):\n{findings}\n"
    remedy = "The retry runs preflight again. Each line says what it waits for; what this one changed stays."


class LakeUnusable(TargetError):
    may_end_meanwhile = True
    happened = "The lake root {lake} cannot be written: {detail}"
    remedy = "Correct `lake` in the pipeline file, or the rights and the credentials of the Airflow workers there."


class StoreClientMissing(ConfigError):
    happened = "The lake {lake} is in an object store, and the package obstore is not installed"
    remedy = "Install it where Airflow's tasks run and where `tidemark` is called: `pip install 'obstore>=0.12'`."


class LakeRefused(TargetError):
    is_of_no_table = True
    may_end_meanwhile = True
    happened = "The object store of {lake} refused {path}: {detail}"
    remedy = (
        "Give the lake's connection, or the machine's own identity if the file names none, the rights that "
        "docs/errors.md lists, or new credentials if they have expired; that page lists a store's other answers too. "
        "Then run the DAG again."
    )


class LakeUnfit(TargetError):
    is_of_no_table = True
    happened = "The object store of {lake} cannot keep a lake: {detail}"
    remedy = (
        "Two drivers or two drains could overwrite each other's files there, or a listing could miss files. Use a "
        "store that writes an object only if it is absent, lists what was written, and deletes; then run preflight "
        "again."
    )


class LakeUnreachable(RetryError):
    is_of_no_table = True
    happened = "The request for {path} to the object store of {lake} failed: {detail}"
    remedy = (
        "The retry asks again. If it persists, check the store, the network, and the connection's endpoint and region."
    )


class DiskFull(TargetError):
    is_of_no_table = True
    may_end_meanwhile = True
    happened = "There is no space left on the disk of {place}"
    remedy = (
        "Free some space, or enlarge the disk, then run the DAG again. Staged and merged changes count, and nothing is "
        "lost. Until then the source's slot retains WAL."
    )

    @classmethod
    def of_a_driver(cls, lake: str) -> DiskFull:
        """Spark does not say whether the disk was a table's, or one where it puts rows aside."""
        return cls(place=f"the lake {lake}, or of Spark's temporary files (spark.local.dir)")


class DiskFailed(RetryError):
    is_of_no_table = True
    happened = "The disk of {place} failed: {detail}"
    remedy = (
        "The retry writes new files; what this try left is not used. If it persists, look at the machine's kernel log, "
        "at how the disk is mounted, and at the server of a network file system."
    )


class LedgerFull(ConfigError):
    may_end_meanwhile = True
    happened = "The ledger's server has no space left on a disk: {detail}"
    remedy = (
        "Free some space on the ledger's server, or enlarge its disk, then run the DAG again. Nothing was recorded in "
        "part. Until then the source's slot retains WAL."
    )


class SourceFull(SourceError):
    happened = "The source's server has no space left on a disk: {detail}"
    remedy = (
        "Free some space on the source's server, or enlarge its disk, then run the DAG again. `tidemark status` shows "
        "how much WAL the slot retains; a successful run releases it."
    )


class SourceLocked(RetryError):
    happened = "Could not lock {what} within {waited}: {blockers}"
    remedy = "Wait until that transaction ends, or have its owner end it; the retry asks again."


class ShapeUnsettled(RetryError):
    happened = (
        "A transaction that changed a table with masked or left-out columns is in the stream, but after {seconds} s "
        "still not visible at the source, so the names of its columns are not certain"
    )
    remedy = (
        "Its commit waits for a synchronous standby that is away: bring that back, or take it out of "
        "synchronous_standby_names. The retry reads the names again."
    )


class SlotCreationBlocked(RetryError):
    happened = (
        'The slot "{slot}" could not be created within {waited}, since transactions were open all that time: {blockers}'
    )
    remedy = (
        "PostgreSQL begins a slot only when they have ended. Have whoever runs them commit or roll them back; the "
        "retry asks again."
    )


# --- protocol (pgoutput) ----------------------------------------------------------------------------------------------


class MalformedMessage(BugError):
    happened = (
        "The source sent data that does not follow the protocol (pgoutput in the stream, COPY in a chunk): {detail}"
    )
    remedy = (
        "Nothing of the batch or chunk was registered. The usual cause is a proxy or pooler between Airflow and "
        "the source: connect to the server directly. If that does not help, report it with PostgreSQL's version."
    )


class SchemaDisagrees(BugError):
    happened = (
        "The definition of table {table} does not match the stream's RELATION message in these columns: {columns}"
    )
    remedy = "Nothing of the batch was registered. Report it with the table's definition and its replica identity."


# --- what a table became at the source --------------------------------------------------------------------------------


class SchemaNotFollowed(BackfillError):
    happened = "Table {table} changed at the source in a way that is not followed: {difference}"
    remedy = (
        "Its changes stay in staging and the other tables go on. If names of columns differ only in case, or are names "
        "that Tidemark uses itself, rename them at the source; if the key is left out, capture it. "
        f"{FOLLOW} To go on without the staged changes, " + BEGIN_ANEW
    )


class DefinitionFrozen(ConfigError):
    happened = (
        "Table {table} changed at the source, and the file freezes its definition (`evolve: freeze`): {difference}"
    )
    remedy = (
        "Its changes stay in staging and the other tables go on. To follow the change, write `evolve: follow` for the "
        "table in the pipeline file: the next run goes on with it."
    )


class DefinitionUndecided(ConfigError):
    happened = (
        "Table {table} changed at the source, and by the pipeline file a person has to accept the change first "
        "(`evolve: ask`): {difference}"
    )
    remedy = "Its changes stay in staging and the other tables go on. To follow the change, unpark the table."


class KeyValueUnfit(BackfillError):
    happened = "Table {table} holds a key value that the target type of its column cannot hold: {columns}"
    remedy = (
        "A key is never converted with loss. Set the column to text (`target: {{column: text}}` in the pipeline file), "
        + BEGIN_ANEW
    )


class KeyValueMissing(BackfillError):
    happened = "Table {table} has rows with NULL in the columns that identify its rows: {columns}"
    remedy = (
        "PostgreSQL allows that while the NOT NULL constraint of a column is NOT VALID. At the source, give these rows "
        "a value or delete them, and validate the constraint (`ALTER TABLE … VALIDATE CONSTRAINT …`); then "
        + BEGIN_ANEW
    )


# --- connections ------------------------------------------------------------------------------------------------------


class DatabaseUnreachable(RetryError):
    happened = "The {database} database cannot be reached: {detail}"
    remedy = "Start the server, or repair the network between it and Airflow's workers; the retry connects again."


class DatabaseRefused(ConfigError):
    may_end_meanwhile = True
    happened = "The {database} database refused the connection: {detail}"
    remedy = (
        "Correct host, database, login or password of the Airflow connection, or pg_hba.conf and the role at the "
        "server."
    )


class PoolerInBetween(ConfigError):
    happened = "A connection pooler answers in place of the {database} database ({detail})"
    remedy = (
        "Name the server's own host and port in the Airflow connection, or the provider's address for direct "
        "connections: a pooler speaks no replication, and loses the settings of a session."
    )


# --- unexpected errors ------------------------------------------------------------------------------------------------


class UnexpectedError(RetryError):
    happened = "An unforeseen error: {kind}, raised in {place}"
    remedy = (
        "Its message is left out, since it may quote values of rows or a password; the traceback shows where it was "
        "raised. The task is retried. If it persists, report it with the traceback."
    )


# --- leases and ledger ------------------------------------------------------------------------------------------------


class PipelineFileDiffers(RetryError):
    happened = (
        "This worker's file of pipeline {pipeline} is not the one that the last preflight used: they differ in tables, "
        "masks, left-out or retyped columns, slot or publication. Nothing was read"
    )
    remedy = (
        "Copy the same file to all workers; the retry goes on once they agree. If the file has just been changed, the "
        "capture's next preflight uses it, unless it finds errors in it."
    )


class PipelineFileSuperseded(RetryError):
    happened = (
        "This worker has the file of pipeline {pipeline} as it was before {superseded_at}, when a preflight accepted "
        "a newer one. Nothing was changed"
    )
    remedy = (
        "Copy the newer file to this worker. If you went back to the older file on purpose, wait: preflight accepts it "
        "from {until} on."
    )


class LeaseTaken(RetryError):
    happened = "The lease {lease} of pipeline {pipeline} is held by {holder} until {until}"
    remedy = "Wait for that task to end; the retry takes the lease over when it has."


class LeaseLost(RetryError):
    happened = "The lease {lease} of pipeline {pipeline} was taken over by {holder} while this task worked"
    remedy = "Nothing was written after that; the retry goes on from the ledger."


class DrainOvertaken(RetryError):
    happened = (
        "A batch of pipeline {pipeline} starting at {start_lsn} was not registered: the generation is staged up to "
        "{staged_lsn}"
    )
    remedy = "Another drain was faster. Its batches count, this task's files are garbage; the retry goes on from there."


class ClaimRefused(RetryError):
    happened = (
        "A batch of pipeline {pipeline} was not registered: it claims {chunk} of backfill {backfill}, and {reason}"
    )
    remedy = (
        "The backfill was closed, or another drain was faster. The retry registers the batch as it was staged: merging "
        "its chunks does no harm, and the backfill stays closed."
    )


class SchemaVersionTaken(RetryError):
    happened = (
        "A batch of pipeline {pipeline} was not registered: while it was staged, a backfill's reader gave version "
        "{version} of table {table} to another shape"
    )
    remedy = "The retry removes the batch, which the source still sends, and drains it again under the next number."


class LedgerNotReady(ConfigError):
    happened = 'The ledger schema "tidemark" is {state}, and version {expected} is needed'
    remedy = (
        "Run the preflight task of the pipeline, or `tidemark migrate <pipeline>`: it brings the schema up to date."
    )


class LedgerIsNewer(ConfigError):
    happened = (
        'The ledger schema "tidemark" is at version {version}, and this version of Tidemark reads it up to {known}: a '
        "newer Tidemark has migrated it. Nothing was read from it or written to it"
    )
    remedy = (
        "Install the newer version wherever tasks of this ledger's pipelines run; an older one does not work on this "
        "ledger again. How to go back all the same: docs/operations.md, Upgrading."
    )


class LedgerBeforeReleases(ConfigError):
    happened = (
        'The ledger schema "tidemark" in database {database} is of a Tidemark from before 0.1.0, which no release '
        "reads. Nothing was read from it or written to it"
    )
    remedy = (
        "Begin anew: DROP SCHEMA tidemark CASCADE in that database, drop the old slots at the source "
        "(pg_drop_replication_slot), and give each pipeline a new name and a new slot in its file. Then run its "
        "capture DAG, and start a backfill of its tables."
    )


class LedgerMigrationRefused(ConfigError):
    happened = (
        'Role {role} may not bring the ledger schema "tidemark" from {before} to version {after}: {detail}. Nothing '
        "was changed"
    )
    remedy = (
        "Let the schema's owner do it: `tidemark migrate <pipeline> --connection <Airflow connection of the owner>`. "
        "If there is no schema yet, GRANT CREATE ON DATABASE {database} TO {role} lets the role make its own; "
        "docs/operations.md, Least privilege, has both ways."
    )


class LedgerMigrationWaits(RetryError):
    happened = (
        'The ledger schema "tidemark" was not brought from {before} to version {after}: {detail}. Nothing was changed'
    )
    remedy = (
        "Another session, for example a pg_dump, holds a lock that the migration needs, or the ledger is slow. The "
        "retry migrates once that has ended; pg_stat_activity of the ledger's database shows the session."
    )


class FormatIsNewer(ConfigError):
    happened = (
        "A {kind} in the lake is of format {written}, and this version of Tidemark reads formats up to {reads}: a "
        "newer Tidemark wrote it. It was left as it is"
    )
    remedy = (
        "Install the newer version wherever tasks of this pipeline run, on Spark's driver too. How to go back to the "
        "older one all the same: docs/operations.md, Upgrading."
    )


class LakeFileBroken(TargetError, ValueError):
    happened = "{file} in the lake is no {kind} that can be read: {reason}. It was left as it is"
    remedy = (
        "Bring the file back as it was (an object store keeps older versions), and run the task again. A broken plan "
        "needs nothing: the next run writes another one."
    )


class GenerationMissing(RetryError):
    happened = "Pipeline {pipeline} has no open generation: its slot was never drained"
    remedy = "Run the pipeline's capture DAG; its preflight creates the slot and opens the first generation."


class SchemaVersionClash(BugError):
    happened = (
        "Version {version} of table {table} in a manifest of pipeline {pipeline} is not the one that the ledger has "
        "under this number"
    )
    remedy = (
        "Nothing was registered. Report it; if the ledger was edited by hand, restore it from a backup and run again."
    )


# --- the slot and generations -----------------------------------------------------------------------------------------


class SlotMissing(SourceError):
    happened = 'The replication slot "{slot}" does not exist at the source'
    remedy = (
        "Run the capture DAG: its preflight creates the slot and opens a new generation. Changes made while no slot "
        "existed are gone, so the pipeline's tables then need a backfill."
    )


class SlotInvalidated(BackfillError):
    happened = (
        'The slot "{slot}" was invalidated (wal_status={wal_status}, {reason}) at {lsn}; changes after that point are '
        "gone"
    )
    remedy = (
        "Drop the slot, which is this pipeline's own (SELECT pg_drop_replication_slot('{slot}')), run the capture DAG, "
        "and start a backfill of the pipeline's tables. Raise max_slot_wal_keep_size or idle_replication_slot_timeout, "
        "or run the DAG more often."
    )


class PublicationWasMissing(BackfillError):
    happened = (
        'The publication "{publication}" did not exist under this name while something changed that the slot "{slot}" '
        "has still to send, and PostgreSQL before version 18 sends nothing more then"
    )
    remedy = (
        "Drop the slot, which is this pipeline's own (SELECT pg_drop_replication_slot('{slot}')), run the capture DAG, "
        "whose preflight makes another one, and start a backfill of the tables that are marked then. Changes that were "
        "not staged are gone. Leave the publication in place from here on, and change it by ALTER PUBLICATION alone."
    )


class LakeTaken(ConfigError):
    happened = (
        "{folder} has the staging of another pipeline of this name: its generation {generation} was opened {evidence}. "
        "Nothing was read or written"
    )
    remedy = (
        "Two pipelines in one folder would write each other's tables: give this one a name or a `lake` of its own. "
        "{own}."
    )


class StagingMissing(TargetError):
    may_end_meanwhile = True
    happened = (
        "{folder}{at} {there} {file}: the ledger has generation {generation} open, staged up to {staged_lsn}, so this "
        "is not the folder that it was staged in, or not all of it. Nothing was staged, merged or confirmed"
    )
    remedy = (
        "Look {look}. If it was restored from a backup, bring the pipeline's folder `staging` back too. If it is the "
        "right one and its staging is lost for good, say so once: `tidemark preflight {path} --staging-is-lost`. Each "
        "table whose staged files are missing is then parked, with a remedy."
    )


class SlotUnknown(ConfigError):
    happened = (
        'The slot "{slot}" exists, and the ledger of pipeline {pipeline} has no record of it: somebody else made it '
        "(it stands at {confirmed_lsn}; {reader})"
    )
    remedy = (
        "Name another slot in the pipeline file, and preflight creates it: reading this one would advance it, and "
        "its owner would lose the changes in between. If it is meant for this pipeline and nothing else reads "
        "it, say so once: `tidemark preflight {path} --adopt-slot`. If pg_upgrade made this server of the captured one "
        "and kept the slot, say instead, and first of all: `tidemark upgraded {path}`."
    )


class PublicationUnknown(ConfigError):
    happened = (
        'The publication "{publication}" was not made by pipeline {pipeline}, and it would have to change: {change}'
    )
    remedy = (
        "Changing it would change what its subscribers receive. Name another publication in the pipeline file, and "
        "preflight creates it; or set manage_publication: false and have its owner change it. If it is meant for this "
        "pipeline alone, say so once: `tidemark preflight {path} --adopt-slot`."
    )


class SlotPluginDiffers(ConfigError):
    happened = 'The slot "{slot}" uses the output plugin {plugin}; Tidemark reads pgoutput'
    remedy = "Name another slot in the pipeline file, and preflight creates it; Tidemark never makes one like this."


class SlotDatabaseDiffers(ConfigError):
    happened = 'The slot "{slot}" belongs to the database {database}; the source connection leads to {connected}'
    remedy = (
        "Name another slot in the pipeline file (slots are named per server), or correct the database of the "
        "connection."
    )


class SlotTwoPhase(ConfigError):
    happened = 'The slot "{slot}" was created with two_phase: prepared transactions would arrive before they commit'
    remedy = "Name another slot in the pipeline file, and preflight creates it; Tidemark never makes one like this."


class SlotSynced(ConfigError):
    may_end_meanwhile = True
    happened = 'The slot "{slot}" is synced from a primary (synced = true): a standby owns no slot that can be read'
    remedy = "Let the source connection lead to the primary, or promote this standby first."


class SourceInRecovery(ConfigError):
    may_end_meanwhile = True
    happened = "The source is in recovery (pg_is_in_recovery): it is a standby"
    remedy = "Let the source connection lead to the primary: heartbeats and watermarks cannot be written on a standby."


class SlotNotReady(RetryError):
    happened = (
        'The slot "{slot}" is still being created: it waits for transactions that were open before it ({blocked_by})'
    )
    remedy = "Wait, or have whoever runs them commit or roll them back; the retry goes on when they have ended."


class SlotOfAnother(ConfigError):
    happened = 'The slot "{slot}" cannot be used: {reason}'
    remedy = "Name another slot in the pipeline file, and preflight creates it; Tidemark never makes one like this."


class SlotBusy(RetryError):
    happened = 'The slot "{slot}" is in use by process {pid} (application_name {application})'
    remedy = (
        "A drain that just died frees it by itself, and the retry goes on. If another program reads it, find out whose "
        "slot it is before anything is stopped: each reader needs one of its own, so name another in the pipeline file "
        "or in that program."
    )


class ChangesGone(BackfillError):
    happened = (
        'The slot "{slot}" stands at {confirmed_lsn}, beyond {staged_lsn}, the last position staged in generation '
        "{generation}: somebody advanced or re-created it, or the ledger was restored from an older copy. The changes "
        "in between are gone"
    )
    remedy = (
        "A new generation was opened at {confirmed_lsn}; the next run goes on from there. Start a backfill of the "
        "pipeline's tables: every table is marked."
    )


class SourceReplaced(BackfillError):
    happened = (
        "The source is no longer the same database: {difference}, since generation {generation} was staged up to "
        "{staged_lsn}. Changes made in between are in no stream"
    )
    remedy = (
        "A new generation was opened at {confirmed_lsn}; the next run goes on from there. Start a backfill of the "
        "pipeline's tables: every table is marked."
    )


class SourceForked(BackfillError):
    happened = (
        "The source's history left the one that was staged: {difference}, in generation {generation}. {transactions}"
    )
    remedy = (
        "A new generation goes on from {left_lsn}, and nothing else is missing. What the lost transactions touched is "
        "marked: {rows}. A run of {pipeline}_backfill that names no table reads exactly that again. Have the source's "
        "owner see what became of the lost transactions; lost.parquet beside the generation's generation.json has all "
        "of them."
    )


class SourceLeftBehind(ConfigError):
    may_end_meanwhile = True
    happened = (
        "The source is on timeline {timeline}, and generation {generation} has followed it to timeline {followed}: the "
        "connection leads to a primary that a standby took over from, or to an older copy of the database. Nothing was "
        "read"
    )
    remedy = (
        "Let the connection lead to the server that is the primary now, and make sure that nobody writes to the other "
        "one. If this server is the source from now on, say so once: `tidemark preflight {path} --adopt-slot`; all "
        "tables then need a backfill."
    )


class GenerationStale(RetryError):
    happened = 'The slot "{slot}" is not the one that generation {generation} was staged from: {difference}'
    remedy = (
        "Nothing was confirmed or staged, and nothing is to be done: the next drain compares the slot with the ledger, "
        "and opens a new generation if one is needed."
    )


class SnapshotBeforeCleanUp(RetryError):
    happened = (
        "No backfill of {table} was opened: staging was cleaned up to transaction {xid} since its snapshot was taken, "
        "and transactions from {xmin} on were still open then"
    )
    remedy = (
        "The retry takes a new snapshot. If that fails the same way, a transaction has been open all the time: look "
        "for a prepared one in pg_prepared_xacts and end it."
    )


class LedgerBehindStaging(RetryError):
    happened = "The ledger of pipeline {pipeline} is behind staging: {difference}"
    remedy = "Nothing was removed. Let {pipeline}_capture run first: it brings the ledger level with staging."


class ParkedKeepsStaging(TargetError):
    happened = (
        "Staging was cleaned, but parked and paused tables of pipeline {pipeline} keep {bytes} bytes of it that are "
        "older than `staging_days`, more than {limit}: {tables}"
    )
    remedy = (
        "`tidemark status` says why each is parked: remove the cause and unpark it, or let it begin anew "
        "(`tidemark unpark --anew`). `tidemark resume` those that are paused. The next maintenance then removes the "
        "staging that they kept."
    )


class ConfirmFailed(RetryError):
    happened = (
        'The slot "{slot}" was confirmed up to {position_lsn}, but reads back {confirmed_lsn}, although nothing holds '
        "it: {staged_lsn} is staged"
    )
    remedy = (
        "The retry confirms again. If it persists, search the server's log for errors of pg_replication_slot_advance."
    )


class ReplicationFailed(RetryError):
    happened = "The replication connection ended: {detail}"
    remedy = "The retry resumes at the last staged position; nothing is lost."


class DrainStalled(RetryError):
    happened = "No message came from the source for {waited} while draining up to {target_lsn}: {cause}"
    remedy = (
        "Look at pg_stat_replication and at long transactions on the source; the retry resumes at the last staged "
        "position."
    )


# --- backfills: planning and reading ---------------------------------------------------------------------------------


class CaptureNotBegun(ConfigError):
    happened = "A backfill of {tables} cannot begin before the pipeline {pipeline} captures it: {reason}"
    remedy = "Run the capture DAG ({pipeline}_capture) first, to its end; then start the backfill again."


class BackfillTablesUnknown(ConfigError):
    happened = "The backfill names tables that pipeline {pipeline} does not capture: {problems}"
    remedy = "Correct the form's tables: names as the source has them, schema.table. Nothing was started."


class BackfillRefused(ConfigError):
    happened = "A backfill of {table} cannot be done as the form says: {reason}"
    remedy = "Correct the form and trigger the DAG again; nothing was started for this table."


class VerifyRefused(ConfigError):
    happened = "{table} cannot be verified: {reason}"
    remedy = "Correct that, or leave the table out of the form, and trigger the DAG again; nothing was started."


class VerifyFormInvalid(ConfigError):
    happened = "The form of the verify of pipeline {pipeline} cannot be used: {problems}"
    remedy = "Trigger the DAG again with the fields {fields}; nothing was started."


class RowFilterInvalid(ConfigError):
    happened = "The row filter cannot be used on table {table}: {detail}"
    remedy = (
        "Correct the form's row filter. It compares captured columns with literals, now() or current_date, by "
        "= <> < <= > >=, BETWEEN, IN, LIKE, IS NULL, AND, OR, NOT (docs/operations.md, Row filters). Trigger the DAG "
        "again, with `replace` if the table already has an open backfill."
    )


class BackfillIsOpen(ConfigError):
    happened = "Table {table} has an open backfill already, {backfill} of run {run_id}: {difference}"
    remedy = (
        "Let it finish (run the backfill DAG without a form: it goes on where it stopped), or trigger again with "
        "`replace`, which closes it."
    )


class BackfillNotApplied(RetryError):
    happened = "Not everything of run {run_id} is applied yet: {pending}"
    remedy = (
        "The retry checks again. The pipeline's next capture run claims and merges the chunks that were read. To read "
        "the others, clear the run's reading tasks, or let the backfill DAG run again."
    )


class DifferencesFound(BackfillError):
    happened = "Tables of pipeline {pipeline} differ from their source. {differences}"
    remedy = (
        "Trigger {pipeline}_verify with these tables, share 1 and `repair`, or a backfill of them; either leaves them "
        "equal. Keys of the rows: {keys}. Then find out who else writes to the lake."
    )


class DifferencesRepaired(TargetError):
    happened = "Tables of pipeline {pipeline} differed from their source, and were repaired. {differences}"
    remedy = "They are equal now. Find out who else writes to the lake; keys of the rows: {keys}."


class NothingProven(BackfillError):
    happened = "A verify of pipeline {pipeline} could prove nothing about {tables}"
    remedy = (
        "The tables were merged as usual. If one needs a backfill, start it; the next run of {pipeline}_verify takes "
        "these parts first. If it happens again, the log of `merge` says why they were not compared."
    )


class BackfillClosed(BackfillError):
    happened = "Backfills of run {run_id} ended before they were applied: {closed}"
    remedy = (
        "The tables are exact all the same: what was claimed is merged, the other rows are as the stream left them. "
        "Start another backfill of these tables."
    )


class BackfillIsRead(RetryError):
    happened = "Table {table} has an open backfill, {backfill} of run {run_id}, which is being read by {reader}"
    remedy = "Let it end; the retry goes on with it when nobody reads it, or trigger again with `replace`."


class JoinHorizonBlocked(RetryError):
    happened = (
        "A backfill of {table} waits for transactions that began before the table was captured or marked; after "
        "{waited} they are still open: {blockers}"
    )
    remedy = "Have whoever runs them commit or roll them back; the retry waits again."


class JoinHorizonAhead(RetryError):
    happened = (
        "{table} was not read: transactions from {xmin} on may be open, and the stream may lack rows of those that "
        "began before {horizon}"
    )
    remedy = (
        "The retry reads it when they have ended. If it persists, look for transactions that are open since the table "
        "joined or was marked."
    )


class TimelineNotFollowed(RetryError):
    happened = (
        "{what}: the source is on timeline {timeline}, and the pipeline follows timeline {followed}, so a standby was "
        "promoted, or the connection leads to an old primary"
    )
    remedy = (
        "Run the capture DAG: its drain follows the promotion, and the retry goes on. If the connection leads to an "
        "old primary, correct it."
    )


class ReadRefused(SourceError):
    happened = "The source does not let the pipeline's role read the rows of {table}: {detail}"
    remedy = (
        "Grant the pipeline's role SELECT on the table; if row-level security hides rows from it, ALTER ROLE … "
        "BYPASSRLS. " + NAME_IT
    )


class ReadFailed(SourceError):
    happened = "PostgreSQL cannot read the rows of {table}: {detail}"
    remedy = (
        "Look up the SQLSTATE in PostgreSQL's documentation. The cause is in the table's data, in the publication's "
        "row filter, or in a function that one of them calls. Correct it at the source. " + NAME_IT
    )


class ReadInterrupted(RetryError):
    happened = "A chunk of {table} could not be read to its end: {detail}"
    remedy = (
        "The retry reads it again from its beginning; chunks that were recorded count. If it persists, find out who "
        "cancels it."
    )


class SnapshotExportBlocked(RetryError):
    happened = (
        "The source exported no snapshot for the backfill within {waited}, since transactions were open all that time: "
        "{blockers}"
    )
    remedy = (
        "A snapshot is exported only when they have ended. Commit, roll back or end them; the retry tries again. Mode "
        "`chunks` does not wait for them."
    )


class SettingsChanged(SourceError):
    happened = "A chunk of {table} was read under settings that change how values read: {settings}"
    remedy = (
        "The chunk was rejected, nothing of it counts. Look for a function at the source that sets them while rows are "
        "read (in an operator class of the key, or in a type's output function) and remove that; or for a connection "
        "pooler that drops the options of the connection string. " + NAME_IT
    )


class SnapshotExportFailed(RetryError):
    happened = "The source exported no snapshot for the backfill: {detail}"
    remedy = (
        "It needs a free replication slot and a free WAL sender (max_replication_slots, max_wal_senders) beside those "
        "in use. The retry tries again; mode `chunks` needs neither."
    )


# --- the Spark application --------------------------------------------------------------------------------------------


class SparkApplicationFailed(RetryError):
    happened = "The Spark application of plan {plan} failed: {detail}"
    remedy = (
        "No table was parked for it. Its own lines are above in the task's log. Commits that it made count, and the "
        "next run applies the rest. If it persists, check the Spark connection, the cluster and the lake."
    )


class SparkApplicationTooLong(RetryError):
    happened = (
        "The Spark application of plan {plan} was ended after {ran} with its driver; merge.timeout_s allows {limit}"
    )
    remedy = (
        "What it committed before counts, and the retry applies the rest; no table was parked for it. If that keeps "
        "happening, raise merge.timeout_s in the pipeline file, or give Spark more memory and cores."
    )


class JarsUnresolved(RetryError):
    happened = "Spark's jars could not be fetched: {detail}"
    remedy = (
        "Run `tidemark jars` once where Airflow's tasks run, and leave spark.jars.packages out of the settings: then "
        "no run fetches anything. It asks the repositories that spark.jars.ivySettings or DEFAULT_ARTIFACT_REPOSITORY "
        "name, and goes through HTTPS_PROXY."
    )


class JarsDiffer(ConfigError):
    happened = "These jars are not the ones that were published (SHA-256 differs): {jars}"
    remedy = (
        "Nothing was written. Correct the repository that spark.jars.ivySettings or DEFAULT_ARTIFACT_REPOSITORY names: "
        "it sends other files under these names. Then run `tidemark jars` again."
    )


class DeltaMissing(ConfigError):
    happened = "Spark {version} does not have Delta Lake: the class io.delta.tables.DeltaTable does not exist in it"
    remedy = (
        "Give it Delta's jars: `tidemark jars` fetches them, or a folder of them in TIDEMARK_SPARK_JARS, or a cluster "
        "that has them. Nothing was written."
    )


class SparkUnsupported(ConfigError):
    happened = "Spark and Delta do not fit: {reason}"
    remedy = (
        "Install the pyspark of one of these, or let SPARK_HOME lead to it, and run `tidemark jars`: docs/versions.md. "
        "Nothing was written."
    )


class NeedsDeltaInternals(ConfigError):
    happened = (
        "{path} needs a change that Tidemark can make only with the Delta that it is built for, and this Spark has "
        "another one: {lacks}"
    )
    remedy = (
        "Run it once by a Spark with the Delta that `tidemark jars` fetches; for a table that is parked, backfill it "
        "instead: docs/versions.md. Nothing was written."
    )


class LogStoreMissing(ConfigError):
    happened = "Spark does not have Tidemark's log store for the lake: the class {name} does not exist in it"
    remedy = (
        "Give Spark spark_apps/log_store/tidemark-log-store.jar by --jars, from the same release as the driver's "
        "library. Airflow's tasks do so by themselves, with the jar in the folder of the Spark applications. If "
        "TIDEMARK_SPARK_APPS names another folder, install the same release there. Nothing was written."
    )


class LogStoreUnfenced(ConfigError):
    happened = (
        "Spark's settings give Delta a log store for the lake that may let a second driver overwrite the commits of "
        "the first: {setting} is {value}"
    )
    remedy = (
        "Remove that setting from spark-defaults.conf of the machines whose tasks run Spark, or from `spark.conf` of "
        "the pipeline file: Tidemark brings log stores of its own for folders and S3, and Delta has those for Google's "
        "store and Azure's. Nothing was written."
    )


# --- merge (Spark and Delta) ------------------------------------------------------------------------------------------


class PositionBelowPlan(TargetError):
    happened = (
        "The Delta table {step} of {table} is at {position}, but the plan begins after {after}: an older copy of it "
        "was put in its place, or it was replaced or removed. Nothing was written"
    )
    remedy = "Put its newest files back and unpark the table. " + REBUILD + " " + REPLAY + " Else " + BEGIN_ANEW


class PositionInsideBatch(TargetError):
    happened = (
        "The Delta table {step} of {table} is at {position}, which lies within the staged batch from {start_lsn} to "
        "{end_lsn}: it was not written from this staging. Nothing was written"
    )
    remedy = "Make sure that no other pipeline or installation writes to this lake root; then " + BEGIN_ANEW


class HistoryBehindCurrent(TargetError):
    happened = (
        "Of {table}, history is at {history_lsn} and current already at {current_lsn}: an older copy of history was "
        "put in its place, or it was replaced or removed. Nothing was written"
    )
    remedy = "Put history's newest files back and unpark the table. " + REPLAY + " Else " + BEGIN_ANEW


class TargetDiffers(TargetError):
    happened = (
        "The Delta table {step} of {table} does not have the columns it was given; differing: {columns}. Nothing was "
        "written"
    )
    remedy = (
        "Undo what was done to the Delta table's columns by hand and unpark the table; what `current` alone lacks is "
        "undone by the DAG `<pipeline>_replay` with the step rebuild. Otherwise " + BEGIN_ANEW
    )


class TargetAhead(RetryError):
    happened = (
        "The Delta table {step} of {table} has the column {column} of a later definition already, since rows of a "
        "backfill brought it; the changes that come next are from before and mean another column by that name. Nothing "
        "was written"
    )
    remedy = (
        "Nothing is to be done: once the capture has staged the changes from after the definition, both are merged."
    )


class LocationTaken(TargetError):
    happened = "{path} has files of somebody else, and no Delta table ({file}). No row was written"
    remedy = "Find out whose they are and have them moved away; then unpark the table."


class SchemaVersionsDiffer(BackfillError):
    happened = (
        "Changes of {table} are staged under its schema versions {older} and {newer}, which differ by more than added "
        "columns: {columns}. Nothing was written"
    )
    remedy = "To go on with the new shape, " + BEGIN_ANEW


class StagedFileGone(BackfillError):
    happened = "A staged file that the plan of {table} names does not exist (any more). Nothing was written"
    remedy = (
        "Bring the staging folder back (an object store keeps older versions) and unpark the table; if the file is "
        "gone for good, " + PASS_OVER
    )


class StagedFileDiffers(BackfillError):
    happened = (
        "The staged file {path} of {table} is not the one that was staged: its size or checksum differs. Nothing was "
        "written"
    )
    remedy = (
        "Bring the file back as it was (an object store keeps older versions) and unpark the table; if it is gone for "
        "good, " + PASS_OVER
    )


class MergeContested(RetryError):
    happened = (
        "Another Spark application commits to {table}; after {rounds} rounds this one gave up. Nothing was written "
        "twice"
    )
    remedy = "Look for a driver that outlived its task and end it; the retry goes on from the tables' positions."


class MergeFailed(RetryError):
    happened = "Spark could not merge {table}: {condition}"
    remedy = (
        "The merge task's log shows where, without any value of a row; a usual cause is a constraint or a generated "
        "column that was added to the Delta table. The next run tries again; after `park_after` runs the table is "
        "parked."
    )


class PlanMissing(RetryError):
    happened = (
        "{plan} does not exist: somebody removed it, or this driver reaches another lake than the one to which it was "
        "written. There is no result for any table"
    )
    remedy = (
        "Check that the lake's volume is mounted where the driver runs, or that its endpoint leads to the same store "
        "there. Then run the DAG again: the next driver goes on from the tables' positions. Files that were written "
        "below an unmounted mount point can be removed."
    )


class LakeFailed(RetryError):
    is_of_no_table = True
    happened = "The lake or the Spark cluster failed while {table} was merged: {condition}"
    remedy = (
        "Repair storage, network or cluster; the next run goes on from the tables' positions. A table is parked for "
        "this only where it was alone with it, `park_after` runs in a row."
    )


class MergeBroken(BugError):
    happened = "Delta refused the merge of {table}: {condition}. Nothing was written"
    remedy = "Report it, with the plan's folder; the table's changes stay in staging until it is unparked."


class ChunksMissing(BugError):
    happened = (
        "The plan sweeps {table} after the backfill {backfill}, which read {chunks}, but has only {claims} of them"
    )
    remedy = "Report it, with the plan's folder; nothing was removed, and the table's changes stay in staging."


class TableLifeBroken(BugError):
    happened = "The event {event} does not fit the life of {table}, whose state of {machine} is {state}"
    remedy = "Report it, with the table's row of tidemark.tables and the task's log; then run the task again."


class MovesNotResolved(BugError):
    happened = "The chain of key changes of a plan was not resolved in {rounds} rounds"
    remedy = "Report it, with the plan's folder; the table's changes stay in staging until it is unparked."


# --- reading the lake (tidemark.lake) ---------------------------------------------------------------------------------


class TableNotInLake(ConfigError):
    happened = "There is no Delta table of {table} at {path}"
    remedy = (
        "Check that the folder given is that of the pipeline, `<lake root>/<pipeline>`, and the name is the table's "
        "id, as `tidemark status` writes it; a table gets its Delta tables with its first change or backfill."
    )


class MomentInvalid(ConfigError):
    happened = "{moment} names no moment: {reason}"
    remedy = "Give an LSN as PostgreSQL writes it (16/B374D848), a `Position`, or a datetime with its time zone."


class MomentNotApplied(RetryError):
    happened = "The lake does not have {table} as of {moment} yet: the table is applied up to {applied}"
    remedy = (
        "Ask again after a run of the capture DAG has merged the table; if the table is parked or paused, "
        "`tidemark status` says why. To go on now, ask for a moment at or before that LSN."
    )


class MomentBeforeHistory(ConfigError):
    happened = "The lake does not have {table} as of {moment}: its history begins at {first}"
    remedy = "Ask for a later moment. No file of the lake has the table as it was before it was captured."


class ReplayRefused(ConfigError):
    happened = "The replay of pipeline {pipeline} was refused, nothing was done: {problems}"
    remedy = "Correct the form's answers and trigger the DAG again."


class ReplayFailed(TargetError):
    happened = "Not all tables of the replay of pipeline {pipeline} were made:\n{tables}"
    remedy = (
        "The others were. Each line says what to do about its table. Then trigger the DAG again, for these tables or "
        "for all of them: a second replay gives the same tables."
    )


class DeltaRsMissing(ConfigError):
    happened = "Without a SparkSession the lake is read through delta-rs, and the package deltalake is not installed"
    remedy = "Install it (`pip install 'deltalake>=1.6'`), or give `Lake` the SparkSession that shall read."
