"""Files of the lake by way of Hadoop, at any position: on a disk past the JVM, from an object store through it."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tests.support.s3_proxy import Fault, Proxy
from tests.support.s3_server import KEY, REGION, SECRET, S3Server
from tidemark.target.delta import hadoop_files
from tidemark.target.delta.jvm import java_class


def session_for(spark: SparkSession, url: str) -> SparkSession:
    """One that knows how the server is got at."""
    session = spark.newSession()
    for key, value in {
        "impl.disable.cache": "true",
        "access.key": KEY,
        "secret.key": SECRET,
        "endpoint": url,
        "endpoint.region": REGION,
        "path.style.access": "true",
        "fast.upload.buffer": "bytebuffer",
    }.items():
        session.conf.set(f"fs.s3a.{key}", value)
    return session


@pytest.fixture(params=["disk", "s3"])
def folder(
    request: pytest.FixtureRequest, spark: SparkSession, s3_server: S3Server, tmp_path: Path
) -> tuple[SparkSession, str]:
    """A session, and a folder of a lake."""
    if request.param == "disk":
        return spark, str(tmp_path / "a b%20c")
    session = session_for(spark, s3_server.url)
    return session, f"s3a://{s3_server.new_bucket('files')}/lake"


def test_what_was_written_is_read_whole_and_by_column(folder: tuple[SparkSession, str]) -> None:
    session, path = folder
    table = pa.table({"id": list(range(50_000)), "text": [f"{n * n} of {n}" for n in range(50_000)]})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=10_000)
    name = hadoop_files.write_new(session, path, sink.getvalue())
    assert hadoop_files.read_whole(session, f"{path}/{name}") == sink.getvalue()
    with hadoop_files.open_to_read(session, f"{path}/{name}") as file:
        parquet = pq.ParquetFile(file)
        assert parquet.read(columns=["id"])["id"].to_pylist() == table["id"].to_pylist()
        assert parquet.read_row_group(3).equals(table.slice(30_000, 10_000))


def test_a_small_object_is_read_by_one_request_and_a_piece_by_another(
    spark: SparkSession, s3_proxy: Proxy, s3_server: S3Server
) -> None:
    session = session_for(spark, s3_proxy.url)
    path = f"s3a://{s3_server.new_bucket('files')}/lake"
    content = bytes(range(256)) * 100
    uri = f"{path}/{hadoop_files.write_new(session, path, content)}"
    s3_proxy.forget()
    with hadoop_files.open_to_read(session, uri, len(content)) as file:
        assert file.read() == content
    assert hadoop_files.read_whole(session, uri) == content
    hadoop_path = java_class(session, "org.apache.hadoop.fs.Path")(uri)
    assert hadoop_files.read_piece(session, hadoop_path, 300, 20) == content[300:320]
    assert s3_proxy.counted() == {"GET": 3}


@pytest.mark.parametrize("fault", ["before", "half", "slow down", "internal error"])
def test_an_object_whose_answer_breaks_is_read_again_and_whole(
    fault: Fault, spark: SparkSession, s3_proxy: Proxy, s3_server: S3Server
) -> None:
    session = session_for(spark, s3_proxy.url)
    path = f"s3a://{s3_server.new_bucket('files')}/lake"
    content = bytes(range(256)) * 1000
    uri = f"{path}/{hadoop_files.write_new(session, path, content)}"
    s3_proxy.fault = lambda request: fault if request.kind == "GET" and not s3_proxy.broken else None
    assert hadoop_files.read_whole(session, uri) == content
    assert [way for way, _ in s3_proxy.broken] == [fault]


def test_what_is_not_there_is_no_empty_file(folder: tuple[SparkSession, str]) -> None:
    session, path = folder
    with pytest.raises((FileNotFoundError, Py4JJavaError)):
        hadoop_files.read_whole(session, f"{path}/none.parquet")
