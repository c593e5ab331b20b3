"""Decodes the bytes of the replication stream and of COPY to typed Arrow columns. Pure."""
