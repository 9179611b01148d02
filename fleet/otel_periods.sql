-- SPDX-License-Identifier: MIT OR Apache-2.0
-- How do the records of periods in the tables of OpenTelemetry's ClickHouse exporter (otel_logs) come into `periods`?
--
-- As otel_readings.sql takes readings. What the exporter has twice, as it was sent again, is one.

INSERT INTO begun (file, mark)
SELECT DISTINCT
    concat('otel-period/', ResourceAttributes['host.name'], '/', toString(Timestamp), '/', LogAttributes['debox.policy']) AS file,
    {mark:String}
FROM {otel:Identifier}.otel_logs
WHERE {again:UInt8} = 0 AND ServiceName = 'debox-agent' AND Timestamp > now() - INTERVAL 30 DAY
    AND LogAttributes['debox.period.begin'] != '' AND LogAttributes['debox.kept.why'] = ''
    AND file NOT IN (SELECT file FROM loaded);

INSERT INTO periods (time, until, host, boot, release, policy, debox_version, verdict, incomplete)
SELECT begin, until, host, boot, release, policy, version, verdict, incomplete
FROM
(
    SELECT
        ResourceAttributes['host.name'] AS host,
        ResourceAttributes['debox.boot.id'] AS boot,
        ResourceAttributes['debox.release'] AS release,
        ResourceAttributes['service.version'] AS version,
        parseDateTimeBestEffort(LogAttributes['debox.period.begin'], 'UTC') AS begin,
        Timestamp AS until,
        if(LogAttributes['debox.verdict'] = '', Body, LogAttributes['debox.verdict']) AS verdict,
        LogAttributes['debox.incomplete'] AS incomplete,
        LogAttributes['debox.policy'] AS policy,
        concat('otel-period/', host, '/', toString(until), '/', policy) AS file
    FROM {otel:Identifier}.otel_logs
    WHERE ServiceName = 'debox-agent' AND Timestamp > now() - INTERVAL 31 DAY
        AND LogAttributes['debox.period.begin'] != '' AND LogAttributes['debox.kept.why'] = ''
        AND file IN (SELECT file FROM begun WHERE mark = {mark:String})
    LIMIT 1 BY file
)
ORDER BY begin
SETTINGS
    insert_deduplication_token = {mark:String},
    max_insert_threads = 1, max_block_size = 1000000000, min_insert_block_size_rows = 1000000000,
    min_insert_block_size_bytes = 0, max_bytes_before_external_sort = 0, max_bytes_ratio_before_external_sort = 0;

INSERT INTO loaded (file) SELECT file FROM begun WHERE mark = {mark:String};

ALTER TABLE begun DROP PARTITION {mark:String};
