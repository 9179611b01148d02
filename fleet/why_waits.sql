-- SPDX-License-Identifier: MIT OR Apache-2.0
-- What did a host wait for in one period of each policy, and what does it usually wait for? (The day before
-- is made as long as the period: its times are of so many seconds.)
--
-- What came over OTLP is of readings, which do not begin where periods do, and of all policies together: it has
-- none, and `whose` says whose periods tell how long the day before was. Names are in hexadecimal.

WITH
    asked AS
    (
        SELECT
            unhex(one.1) AS policy, unhex(one.2) AS whose,
            fromUnixTimestamp64Milli(one.3, 'UTC') AS begin,
            fromUnixTimestamp64Milli(one.4, 'UTC') AS end
        FROM (SELECT arrayJoin(arrayZip({policies:Array(String)}, {whose:Array(String)}, {begins_ms:Array(Int64)}, {ends_ms:Array(Int64)})) AS one)
    ),
    of AS
    (
        SELECT
            asked.policy AS policy, asked.begin AS begin, asked.end AS end,
            sumIf(toFloat64(p.until) - toFloat64(p.time), p.time = asked.begin)
                / sumIf(toFloat64(p.until) - toFloat64(p.time), p.time < asked.begin) AS scale
        FROM asked
        INNER JOIN
        (
            SELECT toString(policy) AS whose, time, until
            FROM periods
            WHERE host = {host:String} AND time > fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
        ) AS p ON p.whose = asked.whose
        WHERE p.time > asked.begin - INTERVAL 1 DAY AND p.time <= asked.begin
        GROUP BY policy, begin, end
    )
SELECT
    w.policy AS policy, w.unit AS unit, w.program AS program, w.call AS call, w.label AS label, w.root AS root,
    sumIf(w.sleeps, w.time >= of.begin) AS sleeps,
    sumIf(w.blocked_ns, w.time >= of.begin) AS blocked_ns,
    maxIf(w.longest_ns, w.time >= of.begin) AS longest_ns,
    if(isFinite(any(of.scale)), toUInt64(sumIf(w.blocked_ns, w.time < of.begin) * any(of.scale)), NULL) AS usually_ns
FROM
(
    SELECT toString(policy) AS policy, unit, program, call, label, root, time, sleeps, blocked_ns, longest_ns
    FROM waits
    WHERE host = {host:String}
        AND time > fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC') AND time < fromUnixTimestamp64Milli({until_ms:Int64}, 'UTC')
        AND (empty({classes:Array(String)}) OR class IN {classes:Array(String)})
) AS w
INNER JOIN of ON of.policy = w.policy
WHERE w.time > of.begin - INTERVAL 1 DAY AND w.time < of.end
GROUP BY policy, unit, program, call, label, root
HAVING blocked_ns > 0
ORDER BY blocked_ns DESC, policy, unit, program, call, label, root
LIMIT {limit:UInt64} BY policy
