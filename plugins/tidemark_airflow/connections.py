"""Resolves Airflow connections to the library's arguments: libpq connection strings, a salt, a Spark connection.

Airflow finds the connection (environment, secrets backend or its database), `tidemark.config.airflow_connections` reads
it, so that tasks and command line understand one connection in one way. Spark's alone is asked of SparkSubmitHook: the
hook turns a missing connection into "yarn" without an error, and preflight has to see what it will do.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook

from tidemark.errors import ConnectionMissing
from tidemark.spark_submit.spark_connection import SparkConnection
from tidemark_airflow.version_compat import AirflowNotFoundException

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from tidemark.config import PipelineConfig
    from tidemark.config.airflow_connections import Connection as TidemarkConnection


def conninfo(connection_id: str) -> str:
    """The libpq connection string. Raises ConnectionMissing or ConnectionInvalid."""
    return _find(connection_id).conninfo()


async def conninfo_in_triggerer(connection_id: str) -> str:
    """The same for a trigger, whose event loop must not block."""
    connection = await _find_in_triggerer(connection_id)
    if (through := connection.ssh_conn_id) is not None:
        connection = dataclasses.replace(connection, ssh=await _find_in_triggerer(through))
    return connection.conninfo()


async def _find_in_triggerer(connection_id: str) -> TidemarkConnection:
    try:
        return _read(await BaseHook.aget_connection(connection_id))
    except AirflowNotFoundException:
        raise _missing(connection_id) from None


def with_lake(config: PipelineConfig) -> PipelineConfig:
    """The pipeline with what the connection of its lake holds, for the task that needs it: an operator's own `config`
    never has it. Raises ConnectionMissing or ConnectionInvalid."""
    if config.lake_connection is None:
        return config
    return dataclasses.replace(config, lake_access=_find(config.lake_connection).lake_access(config.lake))


def salt(connection_id: str | None) -> bytes | None:
    """The salt of `sha256` masks, if the pipeline names a connection for it."""
    return None if connection_id is None else _find(connection_id).salt()


def spark_connection(connection_id: str) -> SparkConnection:
    """What SparkSubmitHook makes of the connection: "yarn" if it found none. What it refuses, a client for Kubernetes
    that is not installed too, is said, not raised."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    try:
        hook = SparkSubmitHook(conn_id=connection_id)
    except RuntimeError:
        return SparkConnection(
            "", refused="it names Kubernetes, and apache-airflow-providers-cncf-kubernetes is missing"
        )
    except ValueError:  # in its own words it might quote an extra
        as_read = _find(connection_id).spark_connection()
        return (
            as_read if as_read.refused else dataclasses.replace(as_read, refused="one of its extras is no value for it")
        )
    resolved = hook._connection
    return SparkConnection(str(resolved["master"]), resolved["deploy_mode"], str(resolved["spark_binary"]))


def _find(connection_id: str) -> TidemarkConnection:
    try:
        connection = _read(BaseHook.get_connection(connection_id))
    except AirflowNotFoundException:
        raise _missing(connection_id) from None
    if (through := connection.ssh_conn_id) is None:
        return connection
    return dataclasses.replace(connection, ssh=_find(through))


def _read(connection: Connection) -> TidemarkConnection:
    from tidemark.config.airflow_connections import Connection as TidemarkConnection

    return TidemarkConnection(
        id=connection.conn_id,
        conn_type=connection.conn_type or "",
        host=connection.host,
        login=connection.login,
        password=connection.password,
        port=connection.port,
        schema=connection.schema,
        extra=connection.extra_dejson,
    )


def _missing(connection_id: str) -> ConnectionMissing:
    return ConnectionMissing(connection=connection_id, variable=f"AIRFLOW_CONN_{connection_id.upper()}")
