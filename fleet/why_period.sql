-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Which period of a host is a moment in, or the last one before it (where there is none, the
-- first one behind, of an hour), and what was said of it?

SELECT
    toUnixTimestamp64Milli(time) AS begin_ms,
    toUnixTimestamp64Milli(until) AS end_ms,
    release, policy, debox_version, kernel, capture, verdict, incomplete
FROM periods
WHERE host = {host:String}
    AND time <= fromUnixTimestamp64Milli({at_ms:Int64} + 3600000, 'UTC')
    AND time > fromUnixTimestamp64Milli({at_ms:Int64} - 86400000, 'UTC')
ORDER BY begin_ms <= {at_ms:Int64} DESC, abs(begin_ms - {at_ms:Int64})
LIMIT 1
