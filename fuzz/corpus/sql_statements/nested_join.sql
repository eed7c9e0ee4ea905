SELECT * FROM (messages a ASOF JOIN (messages b ASOF JOIN trades c MATCH_CONDITION (b.ts >= c.ts)) MATCH_CONDITION (a.ts < b.ts)) LEFT JOIN quotes q ON q.ts BETWEEN a.ts - 1 AND a.ts + 1
