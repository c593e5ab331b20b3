"""Merges the changes of a table in the driver, with Arrow and without a Spark job."""
