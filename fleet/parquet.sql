-- SPDX-License-Identifier: MIT OR Apache-2.0
-- How are files of Parquet, as the agents write them, the tables of schema.sql?
--
-- Run in the directory of the files. Of which time they are stands in their names: those
-- that are of another one than `span` are not opened.

CREATE VIEW waits AS
SELECT * FROM file(
    'waits/date=*/host=*/*.parquet', 'Parquet',
    'time DateTime64(3, \'UTC\'), host LowCardinality(String), release LowCardinality(String), policy LowCardinality(String), unit LowCardinality(String), container LowCardinality(String), pod LowCardinality(String), program LowCardinality(String), call LowCardinality(String), label LowCardinality(String), class LowCardinality(String), root LowCardinality(String), sleeps UInt64, blocked_ns UInt64, longest_ns UInt64')
WHERE toInt64OrZero(extract(_file, '-([0-9]+)-[0-9]+[.]parquet$')) < (SELECT until_ns FROM span)
    AND toInt64OrZero(extract(_file, '-([0-9]+)[.]parquet$')) > (SELECT since_ns FROM span);

CREATE VIEW threads AS
SELECT * FROM file(
    'threads/date=*/host=*/*.parquet', 'Parquet',
    'time DateTime64(3, \'UTC\'), host LowCardinality(String), release LowCardinality(String), policy LowCardinality(String), unit LowCardinality(String), container LowCardinality(String), pod LowCardinality(String), program LowCardinality(String), threads UInt64, own_code_ns UInt64, system_calls_ns UInt64, ending_ns UInt64, blocked_ns UInt64, resting_ns UInt64, page_faults_ns UInt64, stopped_ns UInt64, run_queue_ns UInt64, interrupts_ns UInt64, minor_faults UInt64, major_faults UInt64')
WHERE toInt64OrZero(extract(_file, '-([0-9]+)-[0-9]+[.]parquet$')) < (SELECT until_ns FROM span)
    AND toInt64OrZero(extract(_file, '-([0-9]+)[.]parquet$')) > (SELECT since_ns FROM span);

CREATE VIEW calls AS
SELECT * FROM file(
    'calls/date=*/host=*/*.parquet', 'Parquet',
    'time DateTime64(3, \'UTC\'), host LowCardinality(String), release LowCardinality(String), policy LowCardinality(String), call LowCardinality(String), calls UInt64, errors UInt64, wall_ns UInt64, blocked_ns UInt64, run_queue_ns UInt64, longest_ns UInt64')
WHERE toInt64OrZero(extract(_file, '-([0-9]+)-[0-9]+[.]parquet$')) < (SELECT until_ns FROM span)
    AND toInt64OrZero(extract(_file, '-([0-9]+)[.]parquet$')) > (SELECT since_ns FROM span);

CREATE VIEW periods AS
SELECT * FROM file(
    'periods/date=*/host=*/*.parquet', 'Parquet',
    'time DateTime64(3, \'UTC\'), until DateTime64(3, \'UTC\'), host LowCardinality(String), boot LowCardinality(String), release LowCardinality(String), policy LowCardinality(String), debox_version LowCardinality(String), kernel LowCardinality(String), capture LowCardinality(String), cpus UInt64, threads_started UInt64, sleeps UInt64, blocked_ns UInt64, throttled_ns UInt64, verdict String, incomplete String')
WHERE toInt64OrZero(extract(_file, '-([0-9]+)-[0-9]+[.]parquet$')) < (SELECT until_ns FROM span)
    AND toInt64OrZero(extract(_file, '-([0-9]+)[.]parquet$')) > (SELECT since_ns FROM span);
