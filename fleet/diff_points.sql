-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Of what are the two sides of a comparison made: for how long was which group of hosts watched?
--
-- With few hosts the points are stretches of each one's time, as in a recording's history.

-- Several policies of a host watch at the same time, or one after the other: what counts is when any of them did.

SELECT side, point, sum(watched) AS seconds, uniqExact(host) AS hosts
FROM
(
SELECT
    side,
    host,
    if({by_time:UInt8} = 1,
        concat(toString(host), ' ', toString(toUnixTimestamp(toStartOfInterval(time, INTERVAL 10 MINUTE)))),
        toString(cityHash64(toString(host)) % 500)) AS point,
    intervalLengthSum(toFloat64(time), toFloat64(until)) AS watched
FROM
(
    SELECT *,
        multiIf(
            ({a_release:String} = '' OR release = {a_release:String})
                AND time >= fromUnixTimestamp64Milli({a_since_ms:Int64}, 'UTC')
                AND time < fromUnixTimestamp64Milli({a_until_ms:Int64}, 'UTC'), 'a',
            ({b_release:String} = '' OR release = {b_release:String})
                AND time >= fromUnixTimestamp64Milli({b_since_ms:Int64}, 'UTC')
                AND time < fromUnixTimestamp64Milli({b_until_ms:Int64}, 'UTC'), 'b',
            '') AS side
    FROM periods
    WHERE ({host:String} = '' OR host = {host:String})
        AND (
            time >= fromUnixTimestamp64Milli({a_since_ms:Int64}, 'UTC') AND time < fromUnixTimestamp64Milli({a_until_ms:Int64}, 'UTC')
            OR time >= fromUnixTimestamp64Milli({b_since_ms:Int64}, 'UTC') AND time < fromUnixTimestamp64Milli({b_until_ms:Int64}, 'UTC'))
)
WHERE side != ''
GROUP BY side, point, host
)
GROUP BY side, point
ORDER BY side, point
