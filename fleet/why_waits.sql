-- SPDX-License-Identifier: MIT OR Apache-2.0
-- What did a host wait for in one period, and what does it usually wait for? (The day before
-- is made as long as the period: its times are of so many seconds.)

WITH
    fromUnixTimestamp64Milli({begin_ms:Int64}, 'UTC') AS begin,
    (
        SELECT sumIf(toFloat64(until) - toFloat64(time), time = begin)
            / sumIf(toFloat64(until) - toFloat64(time), time < begin)
        FROM periods
        WHERE host = {host:String} AND policy = {policy:String} AND time > begin - INTERVAL 1 DAY AND time <= begin
    ) AS scale
SELECT
    unit, program, call, label, root,
    sumIf(w.sleeps, w.time = begin) AS sleeps,
    sumIf(w.blocked_ns, w.time = begin) AS blocked_ns,
    maxIf(w.longest_ns, w.time = begin) AS longest_ns,
    if(isFinite(scale), toUInt64(sumIf(w.blocked_ns, w.time < begin) * scale), NULL) AS usually_ns
FROM waits AS w
WHERE host = {host:String} AND policy = {policy:String} AND w.time > begin - INTERVAL 1 DAY AND w.time <= begin
    AND (empty({classes:Array(String)}) OR class IN {classes:Array(String)})
GROUP BY unit, program, call, label, root
HAVING blocked_ns > 0
ORDER BY blocked_ns DESC, unit, program, call, label, root
LIMIT {limit:UInt64}
