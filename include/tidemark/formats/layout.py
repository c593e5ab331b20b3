"""Defines every path below the lake root. Paths in ledger, manifest and plan are relative to it.

    <pipeline>/staging/g<generation>/generation.json, retired.json, lost.parquet
    <pipeline>/staging/g<generation>/<start LSN, 16 hex digits>-<attempt>/
        <schema>.<table>/v<schema version>-<n>.parquet
        transactions.parquet
        manifest.json
    <pipeline>/chunks/<backfill>/<schema>.<table>/<chunk>-<attempt>/v<schema version>-<n>.parquet
    <pipeline>/plans/<plan>/plan.json, result.json
    <pipeline>/plans/<plan>/chunks/<schema>.<table>/<chunk>-<attempt>/part-<uuid>.parquet
    <pipeline>/orders/<attempt>/beat, ready, order-<n>    the plans that an application is to apply, one after another
    <pipeline>/maintenance/<plan>/plan.json, result.json
    <pipeline>/current/<schema>/<table>    <pipeline>/history/<schema>/<table>
    <pipeline>/differences/<schema>/<table>    keys of the rows that a verify found to differ
    <pipeline>/replays/<plan>/plan.json, result.json
    <pipeline>/as_of/g<generation>-<LSN, 16 hex digits>/<schema>/<table>    what a replay made of tables as of a moment
    <pipeline>/_positions    up to where the tables were level, and at which versions, after each merge

The end LSN is unknown when a batch's first file opens, and object stores cannot rename: folders
are named by start and attempt.
"""

from __future__ import annotations

from tidemark.lsn import Lsn
from tidemark.names import TableName, shortened

READY = "ready"


def staging_root(pipeline: str) -> str:
    return f"{pipeline}/staging"


def generation_folder(pipeline: str, generation: int) -> str:
    return f"{staging_root(pipeline)}/g{generation}"


def generation_file(pipeline: str, generation: int) -> str:
    return f"{generation_folder(pipeline, generation)}/generation.json"


def retired_file(pipeline: str, generation: int) -> str:
    return f"{generation_folder(pipeline, generation)}/retired.json"


def lost_file(pipeline: str, generation: int) -> str:
    """The transactions that the lake has of the generation before and the source lost, as in transactions.parquet."""
    return f"{generation_folder(pipeline, generation)}/lost.parquet"


def batch_folder(pipeline: str, generation: int, start: Lsn, attempt: str) -> str:
    return f"{generation_folder(pipeline, generation)}/{start.hex16}-{attempt}"


def changes_file(folder: str, table: TableName, schema_version: int, number: int) -> str:
    return f"{folder}/{_one_name(table)}/v{schema_version}-{number}.parquet"


def _one_name(table: TableName) -> str:
    """Two names of 63 bytes each, all of them encoded, have 379."""
    return shortened(table.path.replace("/", "."))


def chunks_root(pipeline: str) -> str:
    return f"{pipeline}/chunks"


def backfill_folder(pipeline: str, backfill: str) -> str:
    return f"{chunks_root(pipeline)}/{backfill}"


def chunk_folder(pipeline: str, backfill: str, table: TableName, chunk: str, attempt: str) -> str:
    return f"{backfill_folder(pipeline, backfill)}/{_one_name(table)}/{chunk}-{attempt}"


def chunk_file(folder: str, table: TableName, schema_version: int, number: int) -> str:
    """The folder is the table's already."""
    return f"{folder}/v{schema_version}-{number}.parquet"


def transactions_file(folder: str) -> str:
    return f"{folder}/transactions.parquet"


def manifest_file(folder: str) -> str:
    return f"{folder}/manifest.json"


def plans_root(pipeline: str) -> str:
    return f"{pipeline}/plans"


def plan_folder(pipeline: str, plan: str) -> str:
    return f"{pipeline}/plans/{plan}"


def plan_file(pipeline: str, plan: str) -> str:
    return f"{plan_folder(pipeline, plan)}/plan.json"


def result_file(pipeline: str, plan: str) -> str:
    return f"{plan_folder(pipeline, plan)}/result.json"


def rest_folder(pipeline: str, plan: str, table: TableName) -> str:
    """What the merge of a plan reads of a table's chunks where it adds their other rows as they are."""
    return f"{plan_folder(pipeline, plan)}/chunks/{_one_name(table)}"


def orders_root(pipeline: str) -> str:
    return f"{pipeline}/orders"


def orders_folder(pipeline: str, attempt: str) -> str:
    return f"{orders_root(pipeline)}/{attempt}"


def beat_file(pipeline: str, attempt: str) -> str:
    return f"{orders_folder(pipeline, attempt)}/beat"


def ready_file(pipeline: str, attempt: str) -> str:
    """Written by the application once it waits for orders."""
    return f"{orders_folder(pipeline, attempt)}/{READY}"


def order(number: int) -> str:
    return f"order-{number}"


def maintenance_root(pipeline: str) -> str:
    return f"{pipeline}/maintenance"


def maintenance_folder(pipeline: str, plan: str) -> str:
    return f"{maintenance_root(pipeline)}/{plan}"


def maintenance_file(pipeline: str, plan: str) -> str:
    return f"{maintenance_folder(pipeline, plan)}/plan.json"


def current_table(pipeline: str, table: TableName) -> str:
    return f"{pipeline}/current/{table.path}"


def history_table(pipeline: str, table: TableName) -> str:
    return f"{pipeline}/history/{table.path}"


def differences_table(pipeline: str, table: TableName) -> str:
    return f"{pipeline}/differences/{table.path}"


def replays_root(pipeline: str) -> str:
    return f"{pipeline}/replays"


def replay_folder(pipeline: str, plan: str) -> str:
    return f"{replays_root(pipeline)}/{plan}"


def replay_file(pipeline: str, plan: str) -> str:
    return f"{replay_folder(pipeline, plan)}/plan.json"


def as_of_table(pipeline: str, generation: int, lsn: Lsn, table: TableName) -> str:
    return f"{pipeline}/as_of/g{generation}-{lsn.hex16}/{table.path}"


def positions_table(pipeline: str) -> str:
    return f"{pipeline}/_positions"
