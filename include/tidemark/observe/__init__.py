"""Describes the state of a pipeline: as text, JSON, alerts and the verdict of a run."""
