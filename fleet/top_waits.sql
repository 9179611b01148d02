-- SPDX-License-Identifier: MIT OR Apache-2.0
-- What is waited for most, by up to four columns? (A column that is not asked for is "none".)
--
-- Tables stand by hours first, and a day's or a month's rows lie together: which hours the time is in is said as well, and
-- what is of others is not read. Hosts are told apart by numbers, which takes less time than by texts.

SELECT
    toString({by1:Identifier}) AS k1,
    toString({by2:Identifier}) AS k2,
    toString({by3:Identifier}) AS k3,
    toString({by4:Identifier}) AS k4,
    sum(sleeps) AS sleeps,
    sum(blocked_ns) AS blocked_ns,
    max(longest_ns) AS longest_ns,
    uniqExact(cityHash64({hosts:Identifier})) AS hosts,
    blocked_ns / sum(blocked_ns) OVER () AS share
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
    AND (empty({classes:Array(String)}) OR class IN {classes:Array(String)})
GROUP BY k1, k2, k3, k4
ORDER BY blocked_ns DESC, k1, k2, k3, k4
LIMIT {limit:UInt64}
