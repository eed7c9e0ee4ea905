SELECT t.seq, h.ns, q.bid FROM trades t CROSS JOIN (VALUES (1000000), (5000000)) h(ns) ASOF JOIN quotes q MATCH_CONDITION (t.ts + h.ns >= q.ts) ON t.symbol = q.symbol
