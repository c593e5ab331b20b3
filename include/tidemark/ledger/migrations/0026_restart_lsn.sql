-- Where the slot began to read when it was last seen: no transaction that was not staged then has WAL below.

ALTER TABLE tidemark.generations ADD COLUMN restart_lsn pg_lsn;
