"""Writes the JSON Schema of a pipeline file, from which editors complete and check it: docs/pipeline.schema.json.

`PYTHONPATH=include python -m tidemark.config.json_schema > docs/pipeline.schema.json` writes it; a test compares them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from tidemark.config.sections import SECTIONS, PipelineFile, descriptions


class _WithoutTitles(GenerateJsonSchema):
    """Leaves out the titles of fields, which repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema() -> dict[str, Any]:
    generated = PipelineFile.model_json_schema(schema_generator=_WithoutTitles)
    for section in SECTIONS.values():
        definition = generated if section is PipelineFile else generated["$defs"][section.__name__]
        for option, description in descriptions(section).items():
            definition["properties"][option]["description"] = description
    return {"$schema": GenerateJsonSchema.schema_dialect, **generated}


if __name__ == "__main__":
    json.dump(schema(), sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
