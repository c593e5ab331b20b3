"""The options of a pipeline file, from `config` and `pipeline_options` -> docs/configuration.md.

`PYTHONPATH=include python -m tidemark.option_table > docs/configuration.md` writes it; a test holds the two together.
What the page says of other things than options stands here.
"""

from __future__ import annotations

import sys
from dataclasses import fields

from tidemark.config import Bounds
from tidemark.pipeline_options import DEFAULTS, OPTIONS, REQUIRED

_HEAD = """# Configuration

One YAML file per pipeline, in the folder that `TIDEMARK_PIPELINES` names (in a checkout `include/pipelines/`); every
file becomes five DAGs.

An unknown key, a wrong type or a contradiction is an error with file, line and "did you mean"; all errors of a file are
said at once. What needs the source (missing tables, keys, rights) is said by preflight, in the same way.

```yaml
pipeline: shop
source: {connection: shop_source, slot: tidemark_shop, publication: tidemark_shop}
tables:
  - shop.*
  - name: shop.customers
    leave_out: [notes]
    mask: {email: sha256}
    target: {credit: "decimal(20,4)", profile: text}
lake: ../../.tidemark/lake
ledger: {connection: tidemark_ledger}
mask_salt_connection: shop_mask_salt
schedule: "*/5 * * * *"
alerts: {notifier: our_notifiers.Telling, max_lag_s: 1800}
merge: {every: 10m, rows: 20000}
maintenance: {staging_days: 14}
bounds: {batch_rows: 100000}
```

Connections are ids of Airflow connections; the file holds no address and no secret. Source and ledger are connections
of type `postgres`, whose extras may be any libpq parameter (`sslmode`, `options`, …). The Spark connection must be
written as JSON: `{"conn_type": "spark", "host": "local[*]", "extra": {"deploy-mode": "client"}}`.
"""

_LAKE = """
A lake on S3, or on what speaks as S3: `lake: {root: s3://bucket/path, connection: lake_s3}`. The connection is of type
`aws`: login and password are the key, extras `region_name`, `endpoint_url`, `aws_session_token`, and of botocore's
`config_kwargs` `s3.addressing_style` and `request_checksum_calculation` (`when_supported`: SHA-256 with each object, as
a bucket with object lock asks for). Without a
connection, or with one that has no key, tasks and Spark work as the machine's own identity (instance profile, web
identity, container role). `s3://` and `s3a://` are one lake. The path may have spaces and letters of any kind, but no
`%`, `?`, `#` and no empty name: clients read these differently. What of other stores was tried: docs/guarantees.md, at
the end.

A lake on `gs://bucket/path` takes a connection of type `google_cloud_platform`, and of it `keyfile_dict` or `key_path`;
without either, tasks and Spark work as the machine's own identity. One on
`abfss://container@account.dfs.core.windows.net/path`, of an account with a hierarchical namespace, takes one of type
`wasb` or `adls`, and of it what Airflow's own hook would take first:

| the connection has | tasks and Spark are let in by |
|---|---|
| `tenant_id`, login and password | a client of the tenant: its id and its secret |
| `shared_access_key` | the account's key |
| `sas_token`, with or without the address before it | the signature, of the account or the container |
| password, or `account_key` | the account's key |
| `managed_identity_client_id` | that identity of the machine; with `workload_identity_tenant_id` that of the pod |
| none of these | tasks: the machine's own identity; Spark: what `spark.conf` says of one |
"""

_TABLES = """
### Names and patterns

`schema.table`, letter by letter as in PostgreSQL's catalogue. `*`, `?` and `[...]` stand for characters, as in file
names. A part in double quotes is a name that holds a dot or a `*`: `shop."odd.name"`. Partitions are captured as their
root; system tables, views and foreign tables never are.

All entries that match a table hold for it together: what they leave out, mask and retype adds up. No entry wins over
another; two that say different things of one column are an error. A table without a replica identity is captured (as
history only) if it is named without a pattern: a pattern alone never makes PostgreSQL refuse the application's
UPDATE and DELETE.
"""

_MERGE = """
What waits is staged: the slot moves on, and no WAL is kept for it. A table is merged with the next run all the same if
it has chunks of a backfill or a verify, if its last merge failed, if it is new or was un-parked, or if a person
triggers the capture DAG by hand. `status` says when each table is due.
"""

_BOUNDS = """
All are whole numbers above 0; only `wait_s` may be 0. The unit stands last in the name.

These are the same for every pipeline, and no option:

"""

# Variable of the environment -> whose, and what it says.
_VARIABLES = {
    "TIDEMARK_PIPELINES": ("all of Airflow, and the command `tidemark`", "the folder of the pipeline files"),
    "TIDEMARK_SPARK_JARS": ("tasks", "jars for Spark, a folder or a list of them: [Jars](clusters.md#jars)"),
    "TIDEMARK_SPARK_APPS": (
        "tasks",
        "the folder of the Spark applications, where an image has them: [Kubernetes](clusters.md#kubernetes)",
    ),
    "TIDEMARK_JVM_ARCHIVES": (
        "tasks",
        "the folder of the archives with which drivers start faster; set and empty, there are none: "
        "[The driver](tuning.md#the-driver)",
    ),
}
# Setting of Tidemark's own in `spark.conf` -> its default, and what it says.
_SETTINGS = {
    "spark.tidemark.driverFoldRows": (
        "`20000`",
        "changes of a table up to which the driver folds them without Spark, more where they are plain; a number that "
        "is set counts for both, and 0 leaves everything to Spark: [The driver](tuning.md#the-driver)",
    ),
    "spark.tidemark.driverFoldsChunks": ("`true`", "`false`: Spark folds the rows of chunks"),
    "spark.tidemark.driverProvesEqual": ("`true`", "`false`: Spark compares all rows of chunks with the table's"),
    "spark.tidemark.chunksAsTheyAre": ("`true`", "`false`: Spark encodes all rows of chunks anew"),
    "spark.tidemark.catalogue": (
        "none",
        "the schema of Spark's catalogue in which merges name the tables: "
        "[In Spark's catalogue](time-travel.md#in-sparks-catalogue)",
    ),
}

_SECTIONS = {
    "": "The file",
    "source": "source",
    "tables[]": "tables",
    "lake": "lake",
    "ledger": "ledger",
    "spark": "spark",
    "alerts": "alerts",
    "merge": "merge",
    "maintenance": "maintenance",
    "bounds": "bounds",
}


def document() -> str:
    """The whole page as Markdown."""
    sections = [_HEAD]
    for section, title in _SECTIONS.items():
        prefix = f"{section}." if section else ""
        rows = [
            f"| `{option}` | {_default(prefix + option)} | {meaning} |" for option, meaning in OPTIONS[section].items()
        ]
        sections.append("\n".join([f"\n## {title}\n", "| option | default | meaning |", "|---|---|---|", *rows, ""]))
        if section == "tables[]":
            sections.append(_TABLES)
        if section == "lake":
            sections.append(_LAKE)
        if section == "merge":
            sections.append(_MERGE)
        if section == "bounds":
            sections.append(_BOUNDS + _fixed())
    return "".join([*sections, _in_no_file()])


def _in_no_file() -> str:
    variables = [f"| `{name}` | {whose} | {meaning} |" for name, (whose, meaning) in _VARIABLES.items()]
    settings = [f"| `{name}` | {default} | {meaning} |" for name, (default, meaning) in _SETTINGS.items()]
    lines = ["\n## Variables and settings\n", "Variables of the environment, which stand in no pipeline file:\n"]
    lines += ["| variable | of | meaning |", "|---|---|---|", *variables]
    lines += ["\nTidemark's own settings in `spark: {conf: …}`:\n"]
    lines += ["| setting | default | meaning |", "|---|---|---|", *settings, ""]
    return "\n".join(lines)


def _fixed() -> str:
    fixed = [bound for bound in fields(Bounds) if not bound.metadata["option"]]
    rows = [f"| `{bound.name}` | `{bound.default}` | {bound.metadata['help']} |" for bound in fixed]
    return "\n".join(["| bound | value | meaning |", "|---|---|---|", *rows, ""])


def _default(option: str) -> str:
    return "required" if option in REQUIRED else DEFAULTS.get(option, "none")


if __name__ == "__main__":
    sys.stdout.write(document())
