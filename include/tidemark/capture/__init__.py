"""Runs the stages of a capture, one module each, without Airflow: preflight, waiting, drain, merge planning, confirm.

The backfill DAG runs `drain`, `merge_planning` and `confirm` too. They do not depend on its runs: any drain that stages
a chunk's high watermark claims the chunk (`claims`), the next merge applies it, and the slot is confirmed for all. So
`tidemark.backfill` imports this package, and nothing here imports it.
"""
