"""The session that an application starts waits for no delayed acknowledgement, on whatever thread it is asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidemark.target.delta.jvm import java_class
from tidemark.target.delta.socket_acknowledgements import PromptReader


@pytest.mark.thorough
def test_every_thread_reads_long_answers_promptly(spark: SparkSession) -> None:
    def asked(length: int) -> tuple[int, bool]:
        answer = java_class(spark, "org.apache.commons.lang3.StringUtils").repeat("x", length)
        gateway: Any = spark.sparkContext._gateway
        connection = gateway._gateway_client.get_thread_connection()
        return len(answer), isinstance(connection.stream.raw, PromptReader)

    lengths = [10, 8_192, 8_193, 1_000_000]
    with ThreadPoolExecutor(1) as other_thread:
        assert [*map(asked, lengths), *other_thread.map(asked, lengths)] == [(n, True) for n in lengths * 2]
