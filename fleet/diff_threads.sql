-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Where did the time of threads go in the points of diff_points.sql, by state and up to three
-- other columns? (As in diff_waits.sql.)

SELECT
    side,
    if({by1:String} = 'state', state, c1) AS k1,
    if({by2:String} = 'state', state, c2) AS k2,
    if({by3:String} = 'state', state, c3) AS k3,
    if({by4:String} = 'state', state, c4) AS k4,
    point,
    ns
FROM
(
    SELECT
        side,
        toString({column1:Identifier}) AS c1,
        toString({column2:Identifier}) AS c2,
        toString({column3:Identifier}) AS c3,
        toString({column4:Identifier}) AS c4,
        if({by_time:UInt8} = 1,
            concat(toString(host), ' ', toString(toUnixTimestamp(toStartOfInterval(time, INTERVAL 10 MINUTE)))),
            toString(cityHash64(toString(host)) % 500)) AS point,
        [sum(own_code_ns), sum(system_calls_ns), sum(ending_ns), sum(blocked_ns), sum(resting_ns),
            sum(page_faults_ns), sum(stopped_ns), sum(run_queue_ns), sum(interrupts_ns)] AS sums
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
    )
    WHERE side != ''
    GROUP BY side, c1, c2, c3, c4, point
)
ARRAY JOIN
    sums AS ns,
    ['own_code', 'system_calls', 'ending', 'blocked', 'resting', 'page_faults', 'stopped', 'run_queue',
        'interrupts'] AS state
WHERE ns > 0
ORDER BY side, k1, k2, k3, k4, point
