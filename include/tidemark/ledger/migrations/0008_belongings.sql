-- Slots and publications of the source that this pipeline made, or was given by hand. Written before they are made, so
-- that one whose maker died is known for what it is. What is not here, and in no generation, is somebody else's.

CREATE TABLE tidemark.belongings (
    pipeline           text NOT NULL REFERENCES tidemark.pipelines,
    kind               text NOT NULL CHECK (kind IN ('slot', 'publication')),
    system_identifier  text NOT NULL,
    database           text NOT NULL,
    name               text NOT NULL,
    origin             text NOT NULL CHECK (origin IN ('made', 'adopted')),
    noted_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, kind, system_identifier, database, name)
);

-- Pipelines older than this table: their slots stand in `generations`. The name of their publication stands nowhere; the
-- empty one is whatever they change first.
INSERT INTO tidemark.belongings (pipeline, kind, system_identifier, database, name, origin)
SELECT DISTINCT pipeline, 'publication', system_identifier, '', '', 'made' FROM tidemark.generations;
