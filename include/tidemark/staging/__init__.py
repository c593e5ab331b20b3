"""Writes and reads staged batches and chunks as Parquet files below the lake root."""
