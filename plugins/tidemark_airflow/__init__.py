"""Makes Airflow DAGs of pipeline files; each task calls one function of the library `tidemark`.

Nothing in here decides what is staged, applied or confirmed; the ledger and the tables do (R3-R5). A module imported
while a DAG file is parsed imports neither psycopg nor pyarrow nor pyspark: `execute` does.
"""

from tidemark.capture.preflight.airflow_findings import this_installation as _this_installation

for _finding in _this_installation():
    if _finding.severity == "error":
        raise ImportError(f"{_finding.message}. {_finding.remedy}.")
