"""Spark's settings -> whether Delta commits to S3 so that of two drivers one wins each version (R5).

Delta's own log store for S3 keeps drivers apart in one JVM only. Preflight asks this of the files that it sees, and
every driver of its own settings, since a machine's spark-defaults.conf may be another one's than preflight's. Delta
Lake documentation, "Storage configuration".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OF_S3: Final = "spark.delta.logStore.s3a.impl"
OF_ALL: Final = "spark.delta.logStore.class"
OWN: Final = "tidemark.delta.ConditionalLogStore"
OF_GOOGLE: Final = "spark.delta.logStore.gs.impl"
DELTAS_FOR_GOOGLE: Final = "io.delta.storage.GCSLogStore"
DYNAMODB: Final = "io.delta.storage.S3DynamoDBLogStore"


def unfenced(settings: Mapping[str, str]) -> str | None:
    """The setting by which Delta would have another log store for s3a:// than one that fences; None if there is none.
    What is not set is Tidemark's own."""
    if settings.get(OF_S3, OWN) not in (OWN, DYNAMODB):
        return OF_S3
    return OF_ALL if OF_ALL in settings else None
