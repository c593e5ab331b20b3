-- A ledger that is years old: %(last)s + 1 batches of %(size)s bytes of WAL from %(low)s on, each of which touches
-- %(touched)s of %(tables)s tables, and a plan for every %(share)s of them. The tables' positions lie above.

INSERT INTO tidemark.batches
       (pipeline, generation, start_lsn, end_lsn, attempt, run_id, manifest, created_at, changes, bytes,
        transaction_count, skipped_messages, heartbeat_lsn, last_committed_at)
SELECT %(pipeline)s, 1, '0/0'::pg_lsn + (%(low)s + i * %(size)s)::numeric,
       '0/0'::pg_lsn + (%(low)s + (i + 1) * %(size)s)::numeric, 'grown-' || i, 'grown/' || i / %(share)s,
       %(pipeline)s || '/staging/g1/' || lpad(upper(to_hex(%(low)s + i * %(size)s)), 16, '0') || '-grown-' || i
       || '/manifest.json', now(), 50, 5000, 3, 0,
       CASE WHEN i %% %(share)s = 1 THEN '0/0'::pg_lsn + (%(low)s + (i + 1) * %(size)s)::numeric END, now()
  FROM generate_series(0, %(last)s::bigint) i;

INSERT INTO tidemark.batch_tables
       (pipeline, generation, "table", start_lsn, end_lsn, files, counts, converted, unchanged, moved, changes,
        bytes, max_xid)
SELECT %(pipeline)s, 1, 'public.t' || lpad(((i * %(touched)s + k) %% %(tables)s)::text, 4, '0'),
       '0/0'::pg_lsn + (%(low)s + i * %(size)s)::numeric, '0/0'::pg_lsn + (%(low)s + (i + 1) * %(size)s)::numeric,
       jsonb_build_array(jsonb_build_object('path', %(pipeline)s || '/staging/g1/' || i || '/' || k || '.parquet',
           'rows', 10, 'bytes', 1000, 'sha256', repeat('0', 64), 'schema_version', 1)),
       '{"insert": 10}', '{}', 0, 0, 10, 1000, 700 + i
  FROM generate_series(0, %(last)s::bigint) i, generate_series(0, %(touched)s - 1) k;

INSERT INTO tidemark.plans
       (pipeline, plan, generation, run_id, holder, path, tables, created_at, result, ingested_at)
SELECT %(pipeline)s, 'grown-' || i, 1, 'grown/' || i, 'merge', 'plan.json',
       jsonb_build_object('public.t0000', ('0/0'::pg_lsn + (%(low)s + (i + 1) * %(size)s)::numeric)::text),
       now() - interval '1 day', '{"format": 1}', now()
  FROM generate_series(0, %(last)s::bigint / %(share)s) i;

UPDATE tidemark.generations SET start_lsn = '0/0'::pg_lsn + %(low)s::numeric WHERE pipeline = %(pipeline)s;
