-- SPDX-License-Identifier: MIT OR Apache-2.0
-- How does a database in a directory take a day of a table, from files that it can read itself?
-- Which ones it takes is said first: some may come meanwhile.

-- A host's name stands in the rows: in the path it is written otherwise.
SET use_hive_partitioning = 0;

CREATE OR REPLACE TABLE fresh ENGINE = Memory AS
SELECT DISTINCT extract(_path, '[^/]+/date=[^/]+/host=[^/]+/[^/]+$') AS file
FROM file({glob:String}, 'Parquet')
WHERE file NOT IN (SELECT file FROM loaded);

INSERT INTO {table:Identifier}
SELECT * FROM file({glob:String}, 'Parquet')
WHERE extract(_path, '[^/]+/date=[^/]+/host=[^/]+/[^/]+$') IN (SELECT file FROM fresh);

INSERT INTO loaded (file) SELECT file FROM fresh;

DROP TABLE fresh;
