"""Plain PySpark: `open_session.py` -> a session, opened and closed. Nothing that uses Spark can take less."""

from __future__ import annotations

from pyspark.sql import SparkSession

if __name__ == "__main__":
    SparkSession.builder.appName("plain session").getOrCreate().stop()
