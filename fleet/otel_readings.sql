-- SPDX-License-Identifier: MIT OR Apache-2.0
-- How do the figures in the tables of OpenTelemetry's ClickHouse exporter (otel_metrics_sum) come into
-- those of schema.sql, where agents send over OTLP?
--
-- Sums since an agent began become rows of what was added between two of its readings. A sum that was
-- not there before began with nothing; another beginning is another agent. OTLP has waits by label or by what
-- they ended in, not by both: `root` is unknown, and so is whose they were.
--
-- Which readings are taken is said first, under a mark: some may come meanwhile, also of times before. A load that was
-- cut off takes those again, and no others (`again`): as in load.sql, each table and its sums know by the mark what they have.
-- It may take them a day later: so much further back is looked. What was added before an agent's first reading is of its beginning,
-- so of as many days as agents began on.

CREATE OR REPLACE TABLE otel_readings ENGINE = Memory AS
SELECT
    host, start, time, max(time) OVER (PARTITION BY host, start) AS last,
    lagInFrame(time, 1, start) OVER (PARTITION BY host, start ORDER BY time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS begin,
    concat('otel/', host, '/', toString(toUnixTimestamp(start)), '/', toString(time)) AS file
FROM
(
    SELECT DISTINCT
        ResourceAttributes['host.name'] AS host, StartTimeUnix AS start, TimeUnix AS time
    FROM {otel:Identifier}.otel_metrics_sum
    WHERE ServiceName = 'debox-agent' AND TimeUnix > now() - INTERVAL 8 DAY
);

INSERT INTO begun (file, mark)
SELECT file, {mark:String}
FROM otel_readings
WHERE {again:UInt8} = 0 AND time > now() - INTERVAL 7 DAY AND file NOT IN (SELECT file FROM loaded)
    AND (time < last OR time < now() - INTERVAL 1 MINUTE);

CREATE OR REPLACE TABLE otel_fresh ENGINE = Memory AS
SELECT host, start, begin, time FROM otel_readings WHERE file IN (SELECT file FROM begun WHERE mark = {mark:String});

CREATE OR REPLACE TABLE otel_rows ENGINE = Memory AS
SELECT begin, host, release, name, unit, program, state, call, label, class, greatest(value - before, 0) AS more
FROM
(
    SELECT
        ResourceAttributes['host.name'] AS host,
        ResourceAttributes['debox.release'] AS release,
        StartTimeUnix AS start, TimeUnix AS time, MetricName AS name,
        Attributes['unit'] AS unit, Attributes['program'] AS program, Attributes['state'] AS state,
        Attributes['call'] AS call, Attributes['label'] AS label, Attributes['class'] AS class,
        Value AS value,
        lagInFrame(Value, 1, 0) OVER (
            PARTITION BY host, start, name, unit, program, state, call, label, class
            ORDER BY time, value ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS before
    FROM {otel:Identifier}.otel_metrics_sum
    WHERE ServiceName = 'debox-agent'
        AND MetricName IN ('debox.blocked', 'debox.sleeps', 'debox.thread', 'debox.page_faults', 'debox.calls', 'debox.call_errors')
        AND TimeUnix >= (SELECT min(least(begin, time)) FROM otel_fresh)
) AS is
INNER JOIN otel_fresh USING (host, start, time);

INSERT INTO waits (time, host, release, call, label, class, root, sleeps, blocked_ns)
SELECT
    begin, host, release, call, label, class, 'unknown',
    toUInt64(sumIf(more, name = 'debox.sleeps')) AS all_sleeps,
    toUInt64(round(sumIf(more, name = 'debox.blocked') * 1e9)) AS all_ns
FROM otel_rows
WHERE name IN ('debox.blocked', 'debox.sleeps')
GROUP BY begin, host, release, call, label, class
HAVING all_sleeps > 0 OR all_ns > 0
ORDER BY begin
SETTINGS
    insert_deduplication_token = {mark:String}, deduplicate_blocks_in_dependent_materialized_views = 1,
    max_insert_threads = 1, max_block_size = 1000000000, min_insert_block_size_rows = 1000000000,
    min_insert_block_size_bytes = 0, max_bytes_before_external_sort = 0, max_bytes_ratio_before_external_sort = 0,
    max_partitions_per_insert_block = 0;

INSERT INTO threads (time, host, release, unit, program, own_code_ns, system_calls_ns, ending_ns, blocked_ns,
    resting_ns, page_faults_ns, stopped_ns, run_queue_ns, minor_faults, major_faults)
SELECT
    begin, host, release, unit, program,
    toUInt64(round(sumIf(more, name = 'debox.thread' AND state = 'own_code') * 1e9)),
    toUInt64(round(sumIf(more, name = 'debox.thread' AND state = 'system_calls') * 1e9)),
    toUInt64(round(sumIf(more, name = 'debox.thread' AND state = 'ending') * 1e9)),
    toUInt64(round(sumIf(more, name = 'debox.thread' AND state = 'blocked') * 1e9)),
    toUInt64(round(sumIf(more, name = 'debox.thread' AND state = 'resting') * 1e9)),
    toUInt64(round(sumIf(more, name = 'debox.thread' AND state = 'page_faults') * 1e9)),
    toUInt64(round(sumIf(more, name = 'debox.thread' AND state = 'stopped') * 1e9)),
    toUInt64(round(sumIf(more, name = 'debox.thread' AND state = 'run_queue') * 1e9)),
    toUInt64(sumIf(more, name = 'debox.page_faults' AND state = 'minor')),
    toUInt64(sumIf(more, name = 'debox.page_faults' AND state = 'major'))
FROM otel_rows
WHERE name IN ('debox.thread', 'debox.page_faults')
GROUP BY begin, host, release, unit, program
HAVING sum(more) > 0
ORDER BY begin
SETTINGS
    insert_deduplication_token = {mark:String}, deduplicate_blocks_in_dependent_materialized_views = 1,
    max_insert_threads = 1, max_block_size = 1000000000, min_insert_block_size_rows = 1000000000,
    min_insert_block_size_bytes = 0, max_bytes_before_external_sort = 0, max_bytes_ratio_before_external_sort = 0,
    max_partitions_per_insert_block = 0;

INSERT INTO calls (time, host, release, call, calls, errors)
SELECT
    begin, host, release, call,
    toUInt64(sumIf(more, name = 'debox.calls')) AS all_calls,
    toUInt64(sumIf(more, name = 'debox.call_errors'))
FROM otel_rows
WHERE name IN ('debox.calls', 'debox.call_errors')
GROUP BY begin, host, release, call
HAVING all_calls > 0
ORDER BY begin
SETTINGS
    insert_deduplication_token = {mark:String},
    max_insert_threads = 1, max_block_size = 1000000000, min_insert_block_size_rows = 1000000000,
    min_insert_block_size_bytes = 0, max_bytes_before_external_sort = 0, max_bytes_ratio_before_external_sort = 0,
    max_partitions_per_insert_block = 0;

INSERT INTO loaded (file) SELECT file FROM begun WHERE mark = {mark:String};

ALTER TABLE begun DROP PARTITION {mark:String};

DROP TABLE otel_rows;

DROP TABLE otel_fresh;

DROP TABLE otel_readings;
