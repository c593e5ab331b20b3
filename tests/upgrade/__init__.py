"""From an older version to this one, with a pipeline's day of work in ledger, lake and slot.

`ledger_11/` is the oldest version that is upgraded from, named by the last migration that it knew:

    code.zip      its library and Spark applications, as they were
    day.py        what a pipeline went through on it, and what was left in mid air
    recorded/     what a day left: the rows of its ledger, and one of each file that it wrote

`python -m tests.upgrade.record` records again, which only a change of day.py calls for. A release adds a folder of its
own, made by `git archive --format=zip <tag> include/tidemark spark_apps`.
"""
