-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Which period of each of a host's policies is a moment in, or the last one before it (where there is none,
-- the first one behind, of an hour), and what was said of it?
--
-- The first row is the one that is nearest. Another policy's is told if it is not further from that one than it is
-- long itself: a policy that is no longer there has no part in it.

WITH
    nearest AS
    (
        SELECT
            toUnixTimestamp64Milli(time) AS begin_ms,
            toUnixTimestamp64Milli(until) AS end_ms,
            release, policy, debox_version, kernel, capture, verdict, incomplete
        FROM periods
        WHERE host = {host:String}
            AND ({policy:String} = '' OR policy = {policy:String})
            AND time <= fromUnixTimestamp64Milli({at_ms:Int64} + 3600000, 'UTC')
            AND time > fromUnixTimestamp64Milli({at_ms:Int64} - 86400000, 'UTC')
        ORDER BY begin_ms <= {at_ms:Int64} DESC, abs(begin_ms - {at_ms:Int64}), policy
        LIMIT 1 BY policy
    ),
    (SELECT (begin_ms, end_ms) FROM nearest ORDER BY begin_ms <= {at_ms:Int64} DESC, abs(begin_ms - {at_ms:Int64}), policy LIMIT 1) AS first
SELECT *
FROM nearest
WHERE end_ms + (end_ms - begin_ms) >= first.1 AND begin_ms - (end_ms - begin_ms) <= first.2
ORDER BY begin_ms <= {at_ms:Int64} DESC, abs(begin_ms - {at_ms:Int64}), policy
