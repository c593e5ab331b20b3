"""Reads the lake's tables, each as of any moment and several as of one; needs neither Airflow nor ledger.

    Lake(folder).table("shop.orders").as_of("0/16B3748").rows()

`lake_tables` is the interface. It finds the position of a moment (`moments`) and reads the columns from a Delta table's
log (`delta_schemas`). `as_of_query` builds the SQL that takes a moment's rows from `history`, in the SQL of an engine
(`dialects`). `spark_engine` and `delta_rs` are the engines. docs/time-travel.md is for readers of the lake.
"""

from tidemark.lake.lake_tables import Lake, TableAtPosition, TableInLake, TablesAtPosition
from tidemark.lake.moments import Position

__all__ = ["Lake", "Position", "TableAtPosition", "TableInLake", "TablesAtPosition"]
