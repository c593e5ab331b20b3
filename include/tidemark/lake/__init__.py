"""The lake as a reader finds it: any table as of any moment, several tables as of one; needs neither Airflow nor
ledger.

    Lake(folder).table("shop.orders").as_of("0/16B3748").rows()

`positions` says what a moment is, `shapes` what a Delta table's log says of its columns, `past` how the rows of a
moment come from `history`, in the SQL of an engine (`dialects`); `spark_engine` and `delta_rs` are the engines,
`reading` puts them together. docs/time-travel.md is the page for people.
"""

from tidemark.lake.lake_tables import Lake, Past, TableInLake, Together
from tidemark.lake.moments import Position

__all__ = ["Lake", "Past", "Position", "TableInLake", "Together"]
