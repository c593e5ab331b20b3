"""PostgreSQL's own test suites, played in a captured database: `make witnesses POSTGRES_SOURCE=…`."""
