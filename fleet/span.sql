-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Of which time are the files that a question is about?

-- A host's name stands in the rows: in the path it is written otherwise.
SET use_hive_partitioning = 0;

CREATE TABLE span ENGINE = Memory AS
SELECT toInt64({span_since_ns:Int64}) AS since_ns, toInt64({span_until_ns:Int64}) AS until_ns;
