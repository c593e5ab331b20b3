"""Checks in Spark's settings that Delta has a log store by which only one driver can commit each version (R5).

Delta's own log stores for S3 and for files keep writers apart only within one JVM. Those for Google's store and
Azure's keep all drivers apart. Preflight checks the files of its machine, and every driver checks its own settings,
because their spark-defaults.conf may differ. Delta Lake documentation, "Storage configuration".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

OF_S3: Final = "spark.delta.logStore.s3a.impl"
OF_ALL: Final = "spark.delta.logStore.class"
OWN: Final = "tidemark.delta.ConditionalLogStore"
OF_FILES: Final = "spark.delta.logStore.file.impl"
OWN_OF_FILES: Final = "tidemark.delta.LinkedLogStore"
DYNAMODB: Final = "io.delta.storage.S3DynamoDBLogStore"
OF_GOOGLE: Final = "spark.delta.logStore.gs.impl"
DELTAS_FOR_GOOGLE: Final = "io.delta.storage.GCSLogStore"
OF_AZURE: Final = "spark.delta.logStore.abfss.impl"
DELTAS_FOR_AZURE: Final = "io.delta.storage.AzureLogStore"

# Schemes of a lake that is a folder.
FILES: Final = ("", "file")

# Scheme of a lake -> the setting that names its log store.
OF_SCHEMES: Final[Mapping[str, str]] = {"file": OF_FILES, "s3a": OF_S3, "gs": OF_GOOGLE, "abfss": OF_AZURE}

# Scheme of a lake in an object store -> the setting that names its log store -> those that fence; the first one is
# taken where nothing is set.
FENCING: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "s3a": (OF_S3, (OWN, DYNAMODB)),
    "gs": (OF_GOOGLE, (DELTAS_FOR_GOOGLE,)),
    "abfss": (OF_AZURE, (DELTAS_FOR_AZURE,)),
}


def log_store(settings: Mapping[str, str], scheme: str) -> str:
    """The class of the log store for a lake in an object store."""
    setting, (default, *_) = FENCING[scheme]
    return settings.get(setting, default)


def own_log_store(settings: Mapping[str, str], lake: str) -> str | None:
    """The log store of ours by which an application that was started so commits to the lake, if it is one."""
    scheme = urlsplit(lake).scheme
    if scheme in FILES:
        return OWN_OF_FILES if settings.get(OF_FILES) == OWN_OF_FILES else None
    return OWN if scheme == "s3a" and settings.get(OF_S3) == OWN else None


def unfenced_setting(settings: Mapping[str, str], scheme: str) -> str | None:
    """The setting by which Delta would have another log store for the scheme than one that fences; None if there is
    none, and for schemes that need none."""
    if scheme in FILES:
        return OF_FILES if settings.get(OF_FILES, OWN_OF_FILES) != OWN_OF_FILES else None
    if scheme not in FENCING:
        return None
    setting, fencing = FENCING[scheme]
    if log_store(settings, scheme) not in fencing:
        return setting
    return OF_ALL if OF_ALL in settings else None
