-- A table that is captured no more can be forgotten: it is not shown until it joins again.

ALTER TABLE tidemark.tables ADD COLUMN forgotten_at timestamptz;
