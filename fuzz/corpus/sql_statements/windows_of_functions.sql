SELECT first(price, seq) OVER (PARTITION BY symbol ORDER BY ts), last(price, seq) FILTER (WHERE price > 0) OVER w, vwap(price, shares) OVER w FROM trades WINDOW w AS (ORDER BY seq ROWS 3 PRECEDING)
