"""Gives Python the JVM's classes by name, and converts values to the types that Scala's signatures require."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def java_class(session: SparkSession, name: str) -> Any:
    """A class of the JVM by its full name, in one call.

    `jvm.org.apache.spark…` is one call per part, and the JVM looks into every jar, a dozen times over, to find that
    `org` is no class.
    """
    return getattr(session.sparkContext._jvm, name)


def option(spark: SparkSession, value: Any = None) -> Any:
    """Scala's Option of the value; of None its None."""
    return java_class(spark, "scala.Option").apply(value)


def sequence(spark: SparkSession, java_list: Any) -> Any:
    """A Scala sequence of what a Java list has."""
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(java_list)


def array_list(spark: SparkSession) -> Any:
    """An empty Java list, to be filled."""
    return java_class(spark, "java.util.ArrayList")()


def array(spark: SparkSession, of: Any, *items: Any) -> Any:
    """A Java array of a class."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    made = gateway.new_array(of, len(items))
    for n, item in enumerate(items):
        made[n] = item
    return made
