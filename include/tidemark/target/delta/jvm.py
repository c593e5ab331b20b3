"""Gives Python the JVM's classes by name, and converts values to the types that Scala's signatures require."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark.sql import SparkSession


def java_class(session: SparkSession, name: str) -> Any:
    """A class of the JVM by its full name, in one call, made once.

    `jvm.org.apache.spark…` makes one call per part of the name. For each part the JVM searches all jars for a class of
    that name, for example `org`. Delta's classes it searches there in every call, before it asks the loader that has
    Delta's jars.
    """
    return _class_of(session.sparkContext._jvm, name)


@lru_cache(maxsize=1000)
def _class_of(jvm: Any, name: str) -> Any:
    return getattr(jvm, name)


def option(spark: SparkSession, value: Any = None) -> Any:
    """Scala's Option with the value; Scala's None if the value is None."""
    return java_class(spark, "scala.Option").apply(value)


def sequence(spark: SparkSession, java_list: Any) -> Any:
    """A Scala sequence with the elements of a Java list."""
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(java_list)


def array_list(spark: SparkSession) -> Any:
    """An empty Java list."""
    return java_class(spark, "java.util.ArrayList")()


def array(spark: SparkSession, element_class: Any, *items: Any) -> Any:
    """A Java array of the items, whose class is `element_class`."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java_array = gateway.new_array(element_class, len(items))
    for n, item in enumerate(items):
        java_array[n] = item
    return java_array
