-- The numbers of the columns in which alone a marked table may differ from its source; NULL where any may. A backfill
-- that reads these and the key takes the mark away, as one of the whole table does.

ALTER TABLE tidemark.tables ADD COLUMN columns_in_doubt int[];

-- What a backfill reads besides the key; NULL: all columns.
ALTER TABLE tidemark.backfills ADD COLUMN columns int[];
