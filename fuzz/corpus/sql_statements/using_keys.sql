SELECT * FROM messages a ASOF JOIN messages b MATCH_CONDITION (a.ts >= b.ts) USING (symbol)
