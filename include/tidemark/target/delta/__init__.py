"""Holds every call into Delta Lake, Hadoop's file systems and the driver's JVM."""
