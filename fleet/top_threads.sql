-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Where did the time of threads go, by state and up to three other columns? (Hours, and numbers of hosts: as in top_waits.sql.)

SELECT
    if({by1:String} = 'state', state, c1) AS k1,
    if({by2:String} = 'state', state, c2) AS k2,
    if({by3:String} = 'state', state, c3) AS k3,
    if({by4:String} = 'state', state, c4) AS k4,
    ns,
    hosts,
    ns / sum(ns) OVER () AS share
FROM
(
    SELECT
        toString({column1:Identifier}) AS c1,
        toString({column2:Identifier}) AS c2,
        toString({column3:Identifier}) AS c3,
        toString({column4:Identifier}) AS c4,
        uniqExact(cityHash64({hosts:Identifier})) AS hosts,
        [sum(own_code_ns), sum(system_calls_ns), sum(ending_ns), sum(blocked_ns), sum(resting_ns),
            sum(page_faults_ns), sum(stopped_ns), sum(run_queue_ns), sum(interrupts_ns)] AS sums
    FROM
    (
        SELECT *, '' AS none
        FROM {source:Identifier}
        WHERE time >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
            AND time < fromUnixTimestamp64Milli({until_ms:Int64}, 'UTC')
            AND indexHint(toStartOfHour(time) >= toStartOfHour(fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC'))
                AND toStartOfHour(time) < fromUnixTimestamp64Milli({until_ms:Int64}, 'UTC'))
    )
    WHERE ({host:String} = '' OR {hosts:Identifier} = {host:String})
    GROUP BY c1, c2, c3, c4
)
ARRAY JOIN
    sums AS ns,
    ['own_code', 'system_calls', 'ending', 'blocked', 'resting', 'page_faults', 'stopped', 'run_queue',
        'interrupts'] AS state
WHERE ns > 0
ORDER BY ns DESC, k1, k2, k3, k4
LIMIT {limit:UInt64}
