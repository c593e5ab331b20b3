"""Holds one pipeline's configuration: the records that the library reads, and the reader of the file.

`file_reader` reads include/pipelines/<name>.yaml with the models in `sections` and makes a `PipelineConfig` of them.
The same models generate docs/configuration.md (`sandbox.documents`) and docs/pipeline.schema.json (`json_schema`).
"""

from tidemark.config.pipeline import PipelineConfig
from tidemark.config.sections import Alerts, Bounds, Follow, Maintenance, Merge
from tidemark.config.table_rules import Evolve, TableRule, split_pattern

__all__ = [
    "Alerts",
    "Bounds",
    "Evolve",
    "Follow",
    "Maintenance",
    "Merge",
    "PipelineConfig",
    "TableRule",
    "split_pattern",
]
