-- SPDX-License-Identifier: MIT OR Apache-2.0
-- How does a server keep what the hosts of a fleet tell?
--
-- Four tables as the agents write them (docs/fleet.md), and sums of two of them that are made
-- as rows come: by minute over all hosts, which is small however many hosts there are, and by
-- hour for each host; of waits, which have the most rows, by ten minutes as well. Within an hour rows stand by whose they are, so that what is the same
-- stands together; a question for some hours reads those alone. On a cluster put
-- ReplicatedMergeTree for MergeTree and ReplicatedAggregatingMergeTree for AggregatingMergeTree.
--
-- Statements end with a semicolon at the end of a line; `debox fleet load` has them run.

CREATE TABLE IF NOT EXISTS periods
(
    time DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    until DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    host LowCardinality(String),
    boot LowCardinality(String),
    release LowCardinality(String),
    policy LowCardinality(String),
    debox_version LowCardinality(String),
    kernel LowCardinality(String),
    capture LowCardinality(String),
    cpus UInt32 CODEC(ZSTD(1)),
    threads_started UInt64 CODEC(T64, ZSTD(1)),
    sleeps UInt64 CODEC(T64, ZSTD(1)),
    blocked_ns UInt64 CODEC(T64, ZSTD(1)),
    throttled_ns UInt64 CODEC(T64, ZSTD(1)),
    verdict String CODEC(ZSTD(3)),
    incomplete String CODEC(ZSTD(3))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (host, time)
TTL toDateTime(time) + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS waits
(
    time DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    host LowCardinality(String),
    release LowCardinality(String),
    policy LowCardinality(String),
    unit LowCardinality(String),
    container LowCardinality(String),
    pod LowCardinality(String),
    program LowCardinality(String),
    call LowCardinality(String),
    label LowCardinality(String),
    class LowCardinality(String),
    root LowCardinality(String),
    sleeps UInt64 CODEC(T64, ZSTD(1)),
    blocked_ns UInt64 CODEC(T64, ZSTD(1)),
    longest_ns UInt64 CODEC(T64, ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (toStartOfHour(time), host, unit, program, label, root, call, container, class, time)
TTL toDateTime(time) + INTERVAL 7 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS threads
(
    time DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    host LowCardinality(String),
    release LowCardinality(String),
    policy LowCardinality(String),
    unit LowCardinality(String),
    container LowCardinality(String),
    pod LowCardinality(String),
    program LowCardinality(String),
    threads UInt64 CODEC(T64, ZSTD(1)),
    own_code_ns UInt64 CODEC(T64, ZSTD(1)),
    system_calls_ns UInt64 CODEC(T64, ZSTD(1)),
    ending_ns UInt64 CODEC(T64, ZSTD(1)),
    blocked_ns UInt64 CODEC(T64, ZSTD(1)),
    resting_ns UInt64 CODEC(T64, ZSTD(1)),
    page_faults_ns UInt64 CODEC(T64, ZSTD(1)),
    stopped_ns UInt64 CODEC(T64, ZSTD(1)),
    run_queue_ns UInt64 CODEC(T64, ZSTD(1)),
    interrupts_ns UInt64 CODEC(T64, ZSTD(1)),
    minor_faults UInt64 CODEC(T64, ZSTD(1)),
    major_faults UInt64 CODEC(T64, ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (toStartOfHour(time), host, unit, program, container, time)
TTL toDateTime(time) + INTERVAL 7 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

CREATE TABLE IF NOT EXISTS calls
(
    time DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    host LowCardinality(String),
    release LowCardinality(String),
    policy LowCardinality(String),
    call LowCardinality(String),
    calls UInt64 CODEC(T64, ZSTD(1)),
    errors UInt64 CODEC(T64, ZSTD(1)),
    wall_ns UInt64 CODEC(T64, ZSTD(1)),
    blocked_ns UInt64 CODEC(T64, ZSTD(1)),
    run_queue_ns UInt64 CODEC(T64, ZSTD(1)),
    longest_ns UInt64 CODEC(T64, ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (toStartOfHour(time), host, call, time)
TTL toDateTime(time) + INTERVAL 7 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- Of tables that were made before there were pods.
ALTER TABLE waits ADD COLUMN IF NOT EXISTS pod LowCardinality(String) AFTER container;
ALTER TABLE threads ADD COLUMN IF NOT EXISTS pod LowCardinality(String) AFTER container;

-- Which files are in the tables: one that is loaded again adds nothing. It is known for longer than any row of it is
-- kept, and by what is kept longest a month goes at once; a host's clock may be ahead, or was behind where it was loaded.
CREATE TABLE IF NOT EXISTS loaded
(
    file String,
    at DateTime DEFAULT now()
)
ENGINE = MergeTree
ORDER BY file
TTL least(greatest(toDate(at), toDateOrZero(extract(file, '/date=([^/]+)'))), toDate('2100-01-01')) + INTERVAL 440 DAY;

-- Which files a database in a directory takes at once (load.sql), and which readings and periods of OTLP any does
-- (otel_readings.sql, otel_periods.sql), as long as it does.
CREATE TABLE IF NOT EXISTS begun
(
    file String,
    mark String,
    at DateTime DEFAULT now()
)
ENGINE = MergeTree
PARTITION BY mark
ORDER BY file
TTL at + INTERVAL 440 DAY;

CREATE TABLE IF NOT EXISTS waits_1m
(
    time DateTime('UTC') CODEC(Delta, ZSTD(1)),
    release LowCardinality(String),
    unit LowCardinality(String),
    label LowCardinality(String),
    class LowCardinality(String),
    root LowCardinality(String),
    sleeps SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    blocked_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    longest_ns SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(time)
ORDER BY (toStartOfHour(time), unit, label, root, class, release, time)
TTL time + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

CREATE MATERIALIZED VIEW IF NOT EXISTS waits_to_1m TO waits_1m AS
SELECT
    toStartOfMinute(toDateTime(w.time, 'UTC')) AS time,
    release, unit, label, class, root,
    sum(w.sleeps) AS sleeps, sum(w.blocked_ns) AS blocked_ns, max(w.longest_ns) AS longest_ns
FROM waits AS w
GROUP BY time, release, unit, label, class, root;

CREATE TABLE IF NOT EXISTS waits_10m
(
    time DateTime('UTC') CODEC(Delta, ZSTD(1)),
    host LowCardinality(String),
    release LowCardinality(String),
    unit LowCardinality(String),
    program LowCardinality(String),
    label LowCardinality(String),
    class LowCardinality(String),
    root LowCardinality(String),
    sleeps SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    blocked_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    longest_ns SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toDate(time)
ORDER BY (time, host, unit, program, label, root, class, release)
TTL time + INTERVAL 7 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

CREATE MATERIALIZED VIEW IF NOT EXISTS waits_to_10m TO waits_10m AS
SELECT
    toStartOfTenMinutes(toDateTime(w.time, 'UTC')) AS time,
    host, release, unit, program, label, class, root,
    sum(w.sleeps) AS sleeps, sum(w.blocked_ns) AS blocked_ns, max(w.longest_ns) AS longest_ns
FROM waits AS w
GROUP BY time, host, release, unit, program, label, class, root;

CREATE TABLE IF NOT EXISTS waits_1h
(
    time DateTime('UTC') CODEC(Delta, ZSTD(1)),
    host LowCardinality(String),
    release LowCardinality(String),
    unit LowCardinality(String),
    program LowCardinality(String),
    label LowCardinality(String),
    class LowCardinality(String),
    root LowCardinality(String),
    sleeps SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    blocked_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    longest_ns SimpleAggregateFunction(max, UInt64) CODEC(T64, ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(time)
ORDER BY (time, host, unit, program, label, root, class, release)
TTL time + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

-- Of a tenth of the rows. Where sums by hour come from those by ten minutes, these are of all rows: only there
-- `debox fleet top` asks them.
CREATE MATERIALIZED VIEW IF NOT EXISTS waits_to_1h TO waits_1h AS
SELECT
    toStartOfHour(w.time) AS time,
    host, release, unit, program, label, class, root,
    sum(w.sleeps) AS sleeps, sum(w.blocked_ns) AS blocked_ns, max(w.longest_ns) AS longest_ns
FROM waits_10m AS w
GROUP BY time, host, release, unit, program, label, class, root;

CREATE TABLE IF NOT EXISTS threads_1m
(
    time DateTime('UTC') CODEC(Delta, ZSTD(1)),
    release LowCardinality(String),
    unit LowCardinality(String),
    program LowCardinality(String),
    threads SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    own_code_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    system_calls_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    ending_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    blocked_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    resting_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    page_faults_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    stopped_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    run_queue_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    interrupts_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    minor_faults SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    major_faults SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(time)
ORDER BY (toStartOfHour(time), unit, program, release, time)
TTL time + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

CREATE MATERIALIZED VIEW IF NOT EXISTS threads_to_1m TO threads_1m AS
SELECT
    toStartOfMinute(toDateTime(t.time, 'UTC')) AS time,
    release, unit, program,
    sum(t.threads) AS threads, sum(t.own_code_ns) AS own_code_ns,
    sum(t.system_calls_ns) AS system_calls_ns, sum(t.ending_ns) AS ending_ns,
    sum(t.blocked_ns) AS blocked_ns, sum(t.resting_ns) AS resting_ns,
    sum(t.page_faults_ns) AS page_faults_ns, sum(t.stopped_ns) AS stopped_ns,
    sum(t.run_queue_ns) AS run_queue_ns, sum(t.interrupts_ns) AS interrupts_ns,
    sum(t.minor_faults) AS minor_faults, sum(t.major_faults) AS major_faults
FROM threads AS t
GROUP BY time, release, unit, program;

CREATE TABLE IF NOT EXISTS threads_1h
(
    time DateTime('UTC') CODEC(Delta, ZSTD(1)),
    host LowCardinality(String),
    release LowCardinality(String),
    unit LowCardinality(String),
    program LowCardinality(String),
    threads SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    own_code_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    system_calls_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    ending_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    blocked_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    resting_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    page_faults_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    stopped_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    run_queue_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    interrupts_ns SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    minor_faults SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    major_faults SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(time)
ORDER BY (time, host, unit, program, release)
TTL time + INTERVAL 400 DAY
SETTINGS ttl_only_drop_parts = 1, non_replicated_deduplication_window = 10000;

CREATE MATERIALIZED VIEW IF NOT EXISTS threads_to_1h TO threads_1h AS
SELECT
    toStartOfHour(toDateTime(t.time, 'UTC')) AS time,
    host, release, unit, program,
    sum(t.threads) AS threads, sum(t.own_code_ns) AS own_code_ns,
    sum(t.system_calls_ns) AS system_calls_ns, sum(t.ending_ns) AS ending_ns,
    sum(t.blocked_ns) AS blocked_ns, sum(t.resting_ns) AS resting_ns,
    sum(t.page_faults_ns) AS page_faults_ns, sum(t.stopped_ns) AS stopped_ns,
    sum(t.run_queue_ns) AS run_queue_ns, sum(t.interrupts_ns) AS interrupts_ns,
    sum(t.minor_faults) AS minor_faults, sum(t.major_faults) AS major_faults
FROM threads AS t
GROUP BY time, host, release, unit, program;

-- Of tables that were made before all of this was said of them.
ALTER TABLE loaded MODIFY TTL least(greatest(toDate(at), toDateOrZero(extract(file, '/date=([^/]+)'))), toDate('2100-01-01')) + INTERVAL 440 DAY;
ALTER TABLE waits_1m MODIFY SETTING non_replicated_deduplication_window = 10000;
ALTER TABLE waits_1h MODIFY SETTING non_replicated_deduplication_window = 10000;
ALTER TABLE threads_1m MODIFY SETTING non_replicated_deduplication_window = 10000;
ALTER TABLE threads_1h MODIFY SETTING non_replicated_deduplication_window = 10000;
