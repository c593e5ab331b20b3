"""Finds problems of the lake root that would prevent a merge, or let two drivers commit the same version (R5)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

from tidemark.config import PipelineConfig
from tidemark.errors import LakeUnusable, Move, TidemarkError
from tidemark.findings import Finding
from tidemark.storage import log_store_settings
from tidemark.storage.store import Store


def probe(store: Store, config: PipelineConfig) -> None:
    """Write a small file below the lake root, read it back, and delete it and the folders that were created for it.
    Raises LakeUnusable."""
    path, content = f"{config.pipeline}/.preflight-{uuid4().hex}", b"tidemark"
    missing = _missing_folders(store, path)
    try:
        try:
            store.write_atomic(path, content)
            read = store.read(path)
            store.delete(path)
        finally:
            for folder in missing:
                with suppress(OSError):  # somebody else put something into it
                    folder.rmdir()
    except TidemarkError:
        raise
    except Exception as failed:  # each object store has its own exceptions; all of them mean the same here
        raise LakeUnusable(lake=config.lake, detail=_words(failed)) from None
    if read != content:
        raise LakeUnusable(lake=config.lake, detail="a file read back differs from what was written")


def _missing_folders(store: Store, path: str) -> list[Path]:
    """The missing parent folders of a file of this path, the innermost first; none in an object store."""
    if "://" in store.root:
        return []
    return [folder for folder in Path(store.uri(path)).parents if not folder.exists()]


def bucket_findings(store: Store, config: PipelineConfig) -> Iterator[Finding]:
    """Findings on the bucket's rules for objects below the pipeline's folders: expiry, versions, locks. Raises
    LakeUnfit, LakeRefused or LakeUnreachable."""
    name = f"_preflight-{uuid4().hex}"  # a rule may apply to one folder only
    rules = store.check_bucket([f"{config.pipeline}/{folder}/{name}" for folder in ("current", "history", "staging")])
    for rule, target in (rules.expires or {}).items():
        yield Finding.error(
            "lake",
            f"A lifecycle rule of the bucket, {rule}, removes objects below {target.rpartition('/')[0]} by their age: "
            "tables would lose files, and staged changes would be lost before they are merged",
            "Exclude the lake's folder from the rule; the maintenance DAG removes files that no table needs",
            Move.FIX_TARGET,
        )
    if urlsplit(config.lake).scheme == "abfss" and not rules.has_folders:
        yield Finding.error(
            "lake",
            f"The storage account of {config.lake} has no hierarchical namespace. There a commit of Delta is a copy "
            "that may be visible before it is complete, so two Spark drivers may both win a version",
            "Use a storage account with a hierarchical namespace, or have Azure upgrade this one",
            Move.FIX_TARGET,
        )
    if rules.expires is None:
        yield Finding.warning(
            "lake",
            f"It could not be checked whether a lifecycle rule removes objects below {config.lake} by their age",
            "Make sure that no rule removes them or moves them to an archive. Rules that end incomplete uploads and "
            "old versions are useful",
            Move.FIX_TARGET,
        )
    if rules.locked:
        yield Finding.note(
            "lake",
            f"The bucket of {config.lake} locks objects; those that are written now, until {rules.locked}. Files that "
            "VACUUM and maintenance delete are hidden, but they stay that long and cost storage",
        )
    elif rules.versioned:
        yield Finding.note(
            "lake",
            f"The bucket of {config.lake} keeps versions: files that VACUUM and maintenance delete stay and cost "
            "storage, unless a lifecycle rule removes versions that are not current",
        )


# The secret parts of an address: the user's name and password, and the signature in a query.
_SECRET_OF_A_URI: Final = re.compile(r"(?<=://)[^/@\s]*@|\?\S+")


def _words(failed: Exception) -> str:
    """The store's error about the probe file, which has no row, without the credentials that its address may
    contain."""
    return f"{type(failed).__name__}: {_SECRET_OF_A_URI.sub('', str(failed))}"


# Scheme -> how far the log store of this cloud was tested, and the mechanism that its commits rely on.
_OF_ANOTHER_CLOUD: Final = {
    "gs": (
        "A lake on gs:// was tested with Hadoop's connector against an emulator of Google's protocol, not on Google's "
        "servers",
        "Give Spark org.apache.hadoop:hadoop-gcp, of its Hadoop's version, by spark.jars.packages. A commit relies on "
        "puts that fail if the object exists. Run the pipeline in parallel, with verify, before you rely on it",
    ),
    "abfss": (
        "A lake on abfss:// was tested with Hadoop's client against an emulator of Azure's protocol, not on Azure's "
        "servers",
        "Give Spark org.apache.hadoop:hadoop-azure, of its Hadoop's version, by spark.jars.packages. A commit relies "
        "on renames that fail if the name exists. Run the pipeline in parallel, with verify, before you rely on it",
    ),
}
_BESIDES_ON_S3: Final = (
    f"Tidemark's own log store is then used. {log_store_settings.DYNAMODB} is possible too, by "
    f"{log_store_settings.OF_S3}, with its jar and a DynamoDB table"
)


def _remedy(scheme: str) -> str:
    if scheme in log_store_settings.FILES:
        return "Tidemark's own log store is then used"
    return _BESIDES_ON_S3 if scheme == "s3a" else f"Delta then uses {log_store_settings.log_store({}, scheme)}"


def log_store_findings(config: PipelineConfig, of_this_machine: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on Delta's log store for the lake's scheme. A log store that cannot put only if absent would let two
    drivers overwrite each other's commits (R5). `of_this_machine` are the settings of spark-defaults.conf."""
    scheme = urlsplit(config.lake).scheme
    unfenced = log_store_settings.unfenced_setting({**of_this_machine, **config.spark_conf}, scheme)
    if unfenced is not None:
        where = "spark.conf" if unfenced in config.spark_conf else "spark-defaults.conf of this machine"
        removed = "spark.conf of the pipeline file" if unfenced in config.spark_conf else "spark-defaults.conf"
        yield Finding.error(
            "log_store",
            f"{where} gives Delta a log store for {scheme or 'file'}:// that may let a second Spark driver overwrite "
            f"the commits of the first, by {unfenced}",
            f"Remove {unfenced} from {removed}: {_remedy(scheme)}",
            Move.FIX_CONFIG,
        )
    if scheme in _OF_ANOTHER_CLOUD:
        yield Finding.warning("log_store", *_OF_ANOTHER_CLOUD[scheme], Move.FIX_CONFIG)
