"""The stages of a run, one module each, usable without Airflow: preflight, waiting, drain, merging, confirm, and what
they are made of.

`drain`, `merging` and `confirm` stand here although the backfill DAG runs them too: they know nothing of its runs. Its
chunks are claimed by whichever drain stages their high watermark (`claims`), applied by whichever merge comes next, and
the slot is confirmed for all. So `tidemark.backfill` imports this package, and nothing here imports it.
"""
