"""Opens sessions at PostgreSQL servers and strips values from their errors."""
