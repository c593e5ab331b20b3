"""dlt, as its documentation has it: `dlt_to_parquet.py FOLDER` reads a table with its Arrow backend into Parquet
files.

The connection comes in the environment, as dlt has it. It reads what the table holds now: nothing is merged, and no
change of a row is seen. Runs in an environment of its own, which has dlt.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    import dlt
    from dlt.sources.sql_database import sql_table

    folder = sys.argv[1]
    pipeline = dlt.pipeline(
        "peer",
        pipelines_dir=f"{folder}/state",
        destination=dlt.destinations.filesystem(f"file://{folder}/files"),
        dataset_name="peer",
    )
    table = sql_table(table="measurements", schema="public", backend="pyarrow", chunk_size=50_000)
    pipeline.run(table, loader_file_format="parquet", write_disposition="replace").raise_on_failed_jobs()
