-- SPDX-License-Identifier: MIT OR Apache-2.0
-- How long did the points of diff_points.sql wait, by up to four columns? (Only what is of a side is read; hours: as in top_waits.sql.)

SELECT
    side,
    toString({by1:Identifier}) AS k1,
    toString({by2:Identifier}) AS k2,
    toString({by3:Identifier}) AS k3,
    toString({by4:Identifier}) AS k4,
    if({by_time:UInt8} = 1,
        concat(toString(host), ' ', toString(toUnixTimestamp(toStartOfInterval(time, INTERVAL 10 MINUTE)))),
        toString(cityHash64(toString(host)) % 500)) AS point,
    sum(blocked_ns) AS ns
FROM
(
    SELECT *, '' AS none,
        multiIf(
            ({a_release:String} = '' OR release = {a_release:String})
                AND time >= fromUnixTimestamp64Milli({a_since_ms:Int64}, 'UTC')
                AND time < fromUnixTimestamp64Milli({a_until_ms:Int64}, 'UTC'), 'a',
            ({b_release:String} = '' OR release = {b_release:String})
                AND time >= fromUnixTimestamp64Milli({b_since_ms:Int64}, 'UTC')
                AND time < fromUnixTimestamp64Milli({b_until_ms:Int64}, 'UTC'), 'b',
            '') AS side
    FROM {source:Identifier}
    WHERE ({host:String} = '' OR host = {host:String})
        AND (
            time >= fromUnixTimestamp64Milli({a_since_ms:Int64}, 'UTC') AND time < fromUnixTimestamp64Milli({a_until_ms:Int64}, 'UTC')
                AND indexHint(toStartOfHour(time) >= toStartOfHour(fromUnixTimestamp64Milli({a_since_ms:Int64}, 'UTC'))
                    AND toStartOfHour(time) < fromUnixTimestamp64Milli({a_until_ms:Int64}, 'UTC'))
            OR time >= fromUnixTimestamp64Milli({b_since_ms:Int64}, 'UTC') AND time < fromUnixTimestamp64Milli({b_until_ms:Int64}, 'UTC')
                AND indexHint(toStartOfHour(time) >= toStartOfHour(fromUnixTimestamp64Milli({b_since_ms:Int64}, 'UTC'))
                    AND toStartOfHour(time) < fromUnixTimestamp64Milli({b_until_ms:Int64}, 'UTC')))
        AND (empty({classes:Array(String)}) OR class IN {classes:Array(String)})
)
WHERE side != ''
GROUP BY side, k1, k2, k3, k4, point
ORDER BY side, k1, k2, k3, k4, point
