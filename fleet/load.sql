-- SPDX-License-Identifier: MIT OR Apache-2.0
-- How does a database in a directory take files of a table's day, that it can read itself?
-- What is cut off is done again from the second statement on. So that ClickHouse knows by the mark what it has, be it in
-- the table or in its sums, all rows come as one block, however many threads read them and if a file is gone meanwhile.

INSERT INTO begun (file, mark)
SELECT arrayJoin(splitByString('//', {files:String})), {mark:String};

-- A host's name stands in the rows: in the path it is written otherwise.
INSERT INTO {table:Identifier}
SELECT * FROM file({glob:String}, 'Parquet')
WHERE extract(_path, '[^/]+/date=[^/]+/host=[^/]+/[^/]+$') IN (SELECT file FROM begun WHERE mark = {mark:String})
ORDER BY time
SETTINGS
    use_hive_partitioning = 0,
    insert_deduplication_token = {mark:String}, deduplicate_blocks_in_dependent_materialized_views = 1,
    max_insert_threads = 1, max_block_size = 1000000000, min_insert_block_size_rows = 1000000000,
    min_insert_block_size_bytes = 0, max_bytes_before_external_sort = 0, max_bytes_ratio_before_external_sort = 0;

INSERT INTO loaded (file) SELECT file FROM begun WHERE mark = {mark:String};

ALTER TABLE begun DROP PARTITION {mark:String};
