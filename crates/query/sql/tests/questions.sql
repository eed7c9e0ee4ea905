-- What traders ask about a day. A block begins with its title. The second statement of a block is
-- for DuckDB, where its words differ; its table `depth` has whole books at a few moments.

-- question every message
SELECT time, utc, ts, seq, type, locate, order_ref, new_order_ref, side, shares, symbol, price, match
FROM messages ORDER BY seq

-- question every trade
SELECT time, utc, ts, seq, type, symbol, price, shares, side, order_ref, match, printable
FROM trades ORDER BY seq

-- question every quote
SELECT time, utc, ts, symbol, bid, bid_size, ask, ask_size FROM quotes ORDER BY symbol, ts

-- question bars of a minute
SELECT symbol, time_bucket('1 minute', time) AS minute, first(price, seq) AS open, max(price) AS high,
       min(price) AS low, last(price, seq) AS close, sum(shares) AS volume
FROM trades WHERE printable GROUP BY 1, 2 ORDER BY 1, 2
-- duckdb
SELECT symbol, time_bucket(INTERVAL '1 minute', time::TIMESTAMP) AS minute, first(price ORDER BY seq) AS open,
       max(price) AS high, min(price) AS low, last(price ORDER BY seq) AS close, sum(shares)::BIGINT AS volume
FROM trades WHERE printable GROUP BY 1, 2 ORDER BY 1, 2

-- question bars of five seconds by nanoseconds
SELECT time_bucket(5000000000, ts) AS bucket, count(*) AS trades, first(price, seq), last(price, seq), vwap(price, shares)
FROM trades WHERE printable GROUP BY 1 ORDER BY 1
-- duckdb
SELECT ts // 5000000000 * 5000000000 AS bucket, count(*) AS trades, first(price ORDER BY seq), last(price ORDER BY seq),
       sum(price * shares)::DOUBLE / sum(shares) FILTER (WHERE price IS NOT NULL)::DOUBLE
FROM trades WHERE printable GROUP BY 1 ORDER BY 1

-- question bars of a thousand shares
SELECT bar, min(ts) AS begun, max(price) AS high, min(price) AS low, sum(shares) AS volume FROM (
  SELECT ts, price, shares, sum(shares) OVER (ORDER BY seq) / 1000 AS bar FROM trades WHERE printable) t
GROUP BY bar ORDER BY bar
-- duckdb
SELECT bar, min(ts) AS begun, max(price) AS high, min(price) AS low, sum(shares)::BIGINT AS volume FROM (
  SELECT ts, price, shares, (sum(shares) OVER (ORDER BY seq) // 1000)::BIGINT AS bar FROM trades WHERE printable) t
GROUP BY bar ORDER BY bar

-- question VWAP of the day
SELECT symbol, vwap(price, shares) AS vwap, sum(shares) AS volume, count(*) AS trades
FROM trades WHERE printable GROUP BY symbol ORDER BY symbol
-- duckdb
SELECT symbol, sum(price * shares)::DOUBLE / sum(shares) FILTER (WHERE price IS NOT NULL)::DOUBLE AS vwap, sum(shares)::BIGINT AS volume, count(*) AS trades
FROM trades WHERE printable GROUP BY symbol ORDER BY symbol

-- question VWAP so far, at each trade
SELECT seq, CAST(sum(price * shares) OVER w AS DOUBLE) / sum(shares) OVER w AS vwap
FROM trades WINDOW w AS (ORDER BY seq) ORDER BY seq
-- duckdb
SELECT seq, CAST(sum(price * shares) OVER w AS DOUBLE) / (sum(shares) OVER w)::DOUBLE AS vwap
FROM trades WINDOW w AS (ORDER BY seq) ORDER BY seq

-- question TWAP of the mid by minute
SELECT time_bucket(60000000000, ts) AS minute, twap((bid + ask) / 2, ts) AS twap
FROM quotes WHERE bid IS NOT NULL AND ask IS NOT NULL GROUP BY 1 ORDER BY 1
-- duckdb
SELECT minute, sum(mid * stood) / sum(stood) AS twap FROM (
  SELECT ts // 60000000000 * 60000000000 AS minute, ((bid + ask) / 2)::DOUBLE AS mid,
         (lead(ts) OVER (PARTITION BY ts // 60000000000 ORDER BY ts) - ts)::DOUBLE AS stood
  FROM quotes WHERE bid IS NOT NULL AND ask IS NOT NULL)
GROUP BY 1 ORDER BY 1

-- question spread by time
SELECT symbol, sum(CAST(ask - bid AS DOUBLE) * stood) / sum(CAST(stood AS DOUBLE)) AS spread FROM (
  SELECT symbol, bid, ask, lead(ts) OVER (PARTITION BY symbol ORDER BY ts) - ts AS stood FROM quotes) q
WHERE bid IS NOT NULL AND ask IS NOT NULL AND stood IS NOT NULL GROUP BY symbol ORDER BY symbol

-- question how long each spread stood
SELECT ask - bid AS spread, sum(stood) AS ns, count(*) AS quotes FROM (
  SELECT bid, ask, lead(ts) OVER (PARTITION BY symbol ORDER BY ts) - ts AS stood FROM quotes) q
WHERE bid IS NOT NULL AND ask IS NOT NULL GROUP BY 1 ORDER BY 1
-- duckdb
SELECT ask - bid AS spread, sum(stood)::BIGINT AS ns, count(*) AS quotes FROM (
  SELECT bid, ask, lead(ts) OVER (PARTITION BY symbol ORDER BY ts) - ts AS stood FROM quotes) q
WHERE bid IS NOT NULL AND ask IS NOT NULL GROUP BY 1 ORDER BY 1

-- question orders to trades by minute
SELECT time_bucket(60000000000, ts) AS minute, count(*) FILTER (WHERE type IN ('A', 'F', 'U')) AS orders,
       count(*) FILTER (WHERE type IN ('E', 'C', 'P')) AS trades,
       CAST(count(*) FILTER (WHERE type IN ('A', 'F', 'U')) AS DOUBLE)
         / nullif(count(*) FILTER (WHERE type IN ('E', 'C', 'P')), 0) AS ratio
FROM messages GROUP BY 1 ORDER BY 1
-- duckdb
SELECT ts // 60000000000 * 60000000000 AS minute, count(*) FILTER (WHERE type IN ('A', 'F', 'U')) AS orders,
       count(*) FILTER (WHERE type IN ('E', 'C', 'P')) AS trades,
       CAST(count(*) FILTER (WHERE type IN ('A', 'F', 'U')) AS DOUBLE)
         / nullif(count(*) FILTER (WHERE type IN ('E', 'C', 'P')), 0) AS ratio
FROM messages GROUP BY 1 ORDER BY 1

-- question types of messages and their shares
SELECT type, count(*) AS messages, sum(shares) AS shares, min(price) AS low, max(price) AS high, min(time), max(time)
FROM messages GROUP BY type ORDER BY type
-- duckdb
SELECT type, count(*) AS messages, sum(shares)::BIGINT AS shares, min(price) AS low, max(price) AS high, min(time), max(time)
FROM messages GROUP BY type ORDER BY type

-- question lifetimes of deleted orders
SELECT a.side, count(*) AS orders, min(d.ts - a.ts) AS shortest, max(d.ts - a.ts) AS longest,
       avg(CAST(d.ts - a.ts AS DOUBLE)) AS mean, count(*) FILTER (WHERE d.ts - a.ts < 1000000) AS below_1_ms
FROM messages a JOIN messages d ON a.order_ref = d.order_ref
WHERE a.type IN ('A', 'F') AND d.type = 'D' GROUP BY a.side ORDER BY a.side

-- question lifetimes by decade
SELECT floor(log10(CAST(d.ts - a.ts AS DOUBLE))) AS decade, count(*) AS orders
FROM messages a JOIN messages d ON a.order_ref = d.order_ref
WHERE a.type IN ('A', 'F') AND d.type = 'D' AND d.ts > a.ts GROUP BY 1 ORDER BY 1

-- question time to the first execution
WITH first_fills AS (
  SELECT order_ref, min(ts) AS ts, sum(shares) AS filled FROM messages WHERE type IN ('E', 'C') GROUP BY order_ref)
SELECT a.order_ref, f.ts - a.ts AS waited, CAST(f.filled AS BIGINT) AS filled, a.shares
FROM messages a JOIN first_fills f ON a.order_ref = f.order_ref WHERE a.type IN ('A', 'F') ORDER BY a.order_ref

-- question orders that nobody deleted or filled
SELECT side, count(*) AS orders, sum(shares) AS shares FROM messages a
WHERE type IN ('A', 'F') AND NOT EXISTS (
  SELECT 1 FROM messages m WHERE m.order_ref = a.order_ref AND m.type IN ('D', 'E', 'C', 'X', 'U'))
GROUP BY side ORDER BY side
-- duckdb
SELECT side, count(*) AS orders, sum(shares)::BIGINT AS shares FROM messages a
WHERE type IN ('A', 'F') AND NOT EXISTS (
  SELECT 1 FROM messages m WHERE m.order_ref = a.order_ref AND m.type IN ('D', 'E', 'C', 'X', 'U'))
GROUP BY side ORDER BY side

-- question lengths of replace chains
WITH RECURSIVE chain AS (
  SELECT order_ref AS root, order_ref AS now, 0 AS steps FROM messages WHERE type IN ('A', 'F')
  UNION ALL
  SELECT c.root, u.new_order_ref, c.steps + 1 FROM chain c JOIN messages u ON u.order_ref = c.now WHERE u.type = 'U')
SELECT steps, count(*) AS orders FROM (SELECT root, max(steps) AS steps FROM chain GROUP BY root) longest
GROUP BY steps ORDER BY steps

-- question the longest replace chains and where their price went
WITH RECURSIVE chain AS (
  SELECT order_ref AS root, order_ref AS now, price AS begun, price, 0 AS steps FROM messages WHERE type IN ('A', 'F')
  UNION ALL
  SELECT c.root, u.new_order_ref, c.begun, u.price, c.steps + 1
  FROM chain c JOIN messages u ON u.order_ref = c.now WHERE u.type = 'U')
SELECT root, now, steps, begun, price FROM chain ORDER BY steps DESC, root, now LIMIT 20

-- question markouts of each trade after four spans
SELECT t.seq, h.ns, (q.bid + q.ask) / 2 - t.price AS markout
FROM trades t CROSS JOIN (VALUES (1000000), (10000000), (100000000), (1000000000)) AS h(ns)
ASOF JOIN quotes q MATCH_CONDITION (t.ts + h.ns >= q.ts) ON t.symbol = q.symbol ORDER BY t.seq, h.ns
-- duckdb
SELECT t.seq, t.ns, (q.bid + q.ask) / 2 - t.price AS markout
FROM (SELECT t.*, h.ns, t.ts + h.ns AS later
      FROM trades t CROSS JOIN (VALUES (1000000), (10000000), (100000000), (1000000000)) AS h(ns)) t
ASOF LEFT JOIN quotes q ON t.symbol = q.symbol AND t.later >= q.ts ORDER BY t.seq, t.ns

-- question mean markouts by side, weighted by shares
SELECT t.side, h.ns, sum(CAST((q.bid + q.ask) / 2 - t.price AS DOUBLE) * t.shares) / sum(t.shares) AS markout
FROM trades t CROSS JOIN (VALUES (1000000), (1000000000)) AS h(ns)
ASOF JOIN quotes q MATCH_CONDITION (t.ts + h.ns >= q.ts) ON t.symbol = q.symbol
WHERE t.price IS NOT NULL GROUP BY t.side, h.ns ORDER BY t.side, h.ns
-- duckdb
SELECT t.side, t.ns, sum(CAST((q.bid + q.ask) / 2 - t.price AS DOUBLE) * t.shares) / sum(t.shares) AS markout
FROM (SELECT t.*, h.ns, t.ts + h.ns AS later FROM trades t CROSS JOIN (VALUES (1000000), (1000000000)) AS h(ns)) t
ASOF LEFT JOIN quotes q ON t.symbol = q.symbol AND t.later >= q.ts
WHERE t.price IS NOT NULL GROUP BY t.side, t.ns ORDER BY t.side, t.ns

-- question the quote at each trade
SELECT t.seq, q.ts, q.bid, q.bid_size, q.ask, q.ask_size
FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts >= q.ts) ON t.symbol = q.symbol ORDER BY t.seq
-- duckdb
SELECT t.seq, q.ts, q.bid, q.bid_size, q.ask, q.ask_size
FROM trades t ASOF LEFT JOIN quotes q ON t.symbol = q.symbol AND t.ts >= q.ts ORDER BY t.seq

-- question the quote before each trade
SELECT t.seq, q.ts, q.bid, q.ask
FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts > q.ts) ON t.symbol = q.symbol ORDER BY t.seq
-- duckdb
SELECT t.seq, q.ts, q.bid, q.ask
FROM trades t ASOF LEFT JOIN quotes q ON t.symbol = q.symbol AND t.ts > q.ts ORDER BY t.seq

-- question the quote that each trade left
SELECT t.seq, q.ts, q.bid, q.ask
FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts <= q.ts) ON t.symbol = q.symbol ORDER BY t.seq
-- duckdb
SELECT t.seq, q.ts, q.bid, q.ask
FROM trades t ASOF LEFT JOIN quotes q ON t.symbol = q.symbol AND t.ts <= q.ts ORDER BY t.seq

-- question the quote after each trade
SELECT t.seq, q.ts, q.bid, q.ask
FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts < q.ts) ON t.symbol = q.symbol ORDER BY t.seq
-- duckdb
SELECT t.seq, q.ts, q.bid, q.ask
FROM trades t ASOF LEFT JOIN quotes q ON t.symbol = q.symbol AND t.ts < q.ts ORDER BY t.seq

-- question the quote of at most a millisecond before each trade
SELECT t.seq, q.ts, q.bid, q.ask
FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts > q.ts AND t.ts - q.ts <= 1000000) ON t.symbol = q.symbol
ORDER BY t.seq
-- duckdb
SELECT seq, if(near, q_ts, NULL) AS ts, if(near, bid, NULL), if(near, ask, NULL) FROM (
  SELECT t.seq, q.ts AS q_ts, q.bid, q.ask, t.ts - q.ts <= 1000000 AS near
  FROM trades t ASOF LEFT JOIN quotes q ON t.symbol = q.symbol AND t.ts > q.ts)
ORDER BY seq

-- question the trade nearest to each tenth quote
SELECT q.ts, t.ts AS trade_ts, t.price
FROM (SELECT * FROM quotes WHERE ts % 10 = 0) q
ASOF JOIN (SELECT symbol, ts, last(price, seq) AS price FROM trades GROUP BY symbol, ts) t
  MATCH_CONDITION (nearest(q.ts, t.ts)) ON q.symbol = t.symbol ORDER BY q.ts, q.symbol
-- duckdb
WITH t AS (SELECT symbol, ts, last(price ORDER BY seq) AS price FROM trades GROUP BY symbol, ts),
     q AS (SELECT * FROM quotes WHERE ts % 10 = 0),
     b AS (SELECT q.symbol, q.ts, t.ts AS b_ts, t.price AS b_price
           FROM q ASOF LEFT JOIN t ON q.symbol = t.symbol AND q.ts >= t.ts),
     both_sides AS (SELECT b.*, t.ts AS a_ts, t.price AS a_price
           FROM b ASOF LEFT JOIN t ON b.symbol = t.symbol AND b.ts <= t.ts)
SELECT ts, CASE WHEN b_ts IS NULL OR a_ts - ts < ts - b_ts THEN a_ts ELSE b_ts END AS trade_ts,
       CASE WHEN b_ts IS NULL OR a_ts - ts < ts - b_ts THEN a_price ELSE b_price END AS price
FROM both_sides ORDER BY ts, symbol

-- question the last trade before each quote, where trades have equal times
SELECT q.ts, t.seq, t.price
FROM quotes q ASOF JOIN trades t MATCH_CONDITION (q.ts >= t.ts) ON q.symbol = t.symbol ORDER BY q.ts, q.symbol
-- duckdb
SELECT q.ts, t.seq, t.price FROM quotes q
ASOF LEFT JOIN (SELECT symbol, ts, max(seq) AS seq, last(price ORDER BY seq) AS price FROM trades GROUP BY symbol, ts) t
  ON q.symbol = t.symbol AND q.ts >= t.ts ORDER BY q.ts, q.symbol

-- question trades inside, at and outside the quote before them
SELECT t.side, CASE WHEN t.price < q.bid THEN 'below' WHEN t.price = q.bid THEN 'bid' WHEN t.price < q.ask THEN 'inside'
                    WHEN t.price = q.ask THEN 'ask' ELSE 'above' END AS place, count(*) AS trades, sum(t.shares) AS shares
FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts > q.ts) ON t.symbol = q.symbol
WHERE q.bid IS NOT NULL AND q.ask IS NOT NULL AND t.price IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
-- duckdb
SELECT t.side, CASE WHEN t.price < q.bid THEN 'below' WHEN t.price = q.bid THEN 'bid' WHEN t.price < q.ask THEN 'inside'
                    WHEN t.price = q.ask THEN 'ask' ELSE 'above' END AS place, count(*) AS trades, sum(t.shares)::BIGINT AS shares
FROM trades t ASOF LEFT JOIN quotes q ON t.symbol = q.symbol AND t.ts > q.ts
WHERE q.bid IS NOT NULL AND q.ask IS NOT NULL AND t.price IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2

-- question effective spread against the quote before
SELECT sum(2 * abs(CAST(t.price AS DOUBLE) - CAST(q.bid + q.ask AS DOUBLE) / 2) * t.shares) / sum(t.shares) AS spread
FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts > q.ts) ON t.symbol = q.symbol
WHERE q.bid IS NOT NULL AND q.ask IS NOT NULL AND t.price IS NOT NULL
-- duckdb
SELECT sum(2 * abs(CAST(t.price AS DOUBLE) - CAST(q.bid + q.ask AS DOUBLE) / 2) * t.shares) / sum(t.shares) AS spread
FROM trades t ASOF LEFT JOIN quotes q ON t.symbol = q.symbol AND t.ts > q.ts
WHERE q.bid IS NOT NULL AND q.ask IS NOT NULL AND t.price IS NOT NULL

-- question what traded in the half second before each large trade
SELECT a.seq, count(b.seq) AS trades, coalesce(sum(b.shares), 0) AS shares, min(b.price) AS low, max(b.price) AS high
FROM (SELECT * FROM trades WHERE shares >= 300) a
LEFT JOIN trades b ON b.ts BETWEEN a.ts - 500000000 AND a.ts AND b.symbol = a.symbol GROUP BY a.seq ORDER BY a.seq
-- duckdb
SELECT a.seq, count(b.seq) AS trades, coalesce(sum(b.shares), 0)::BIGINT AS shares, min(b.price) AS low, max(b.price) AS high
FROM (SELECT * FROM trades WHERE shares >= 300) a
LEFT JOIN trades b ON b.ts BETWEEN a.ts - 500000000 AND a.ts AND b.symbol = a.symbol GROUP BY a.seq ORDER BY a.seq

-- question quotes within a millisecond of each trade
SELECT t.seq, count(q.ts) AS quotes, min(q.bid) AS bid, max(q.ask) AS ask
FROM trades t LEFT JOIN quotes q ON q.ts BETWEEN t.ts - 1000000 AND t.ts + 1000000 AND t.symbol = q.symbol
GROUP BY t.seq ORDER BY t.seq

-- question messages by the venue's clock around each trade, by intervals
SELECT t.seq, count(m.seq) AS messages
FROM trades t LEFT JOIN messages m
  ON m.time >= t.time - INTERVAL '2 milliseconds' AND m.time < t.time AND m.type IN ('A', 'F')
GROUP BY t.seq ORDER BY t.seq
-- duckdb
SELECT t.seq, count(m.seq) AS messages
FROM trades t LEFT JOIN messages m ON m.ts >= t.ts - 2000000 AND m.ts < t.ts AND m.type IN ('A', 'F')
GROUP BY t.seq ORDER BY t.seq

-- question shares of the last second, at each trade
SELECT seq, sum(shares) OVER (ORDER BY ts RANGE BETWEEN 1000000000 PRECEDING AND CURRENT ROW) AS shares
FROM trades ORDER BY seq
-- duckdb
SELECT seq, (sum(shares) OVER (ORDER BY ts RANGE BETWEEN 1000000000 PRECEDING AND CURRENT ROW))::BIGINT AS shares
FROM trades ORDER BY seq

-- question volatility of the mid by seconds
SELECT count(*) AS returns, stddev(r) AS deviation, sqrt(sum(r * r)) AS realized FROM (
  SELECT ln(mid / lag(mid) OVER (ORDER BY second)) AS r FROM (
    SELECT time_bucket(1000000000, ts) AS second, last(CAST(bid + ask AS DOUBLE) / 2, ts) AS mid
    FROM quotes WHERE bid IS NOT NULL AND ask IS NOT NULL GROUP BY 1) s) x
WHERE r IS NOT NULL
-- duckdb
SELECT count(*) AS returns, stddev(r) AS deviation, sqrt(sum(r * r)) AS realized FROM (
  SELECT ln(mid / lag(mid) OVER (ORDER BY second)) AS r FROM (
    SELECT ts // 1000000000 * 1000000000 AS second, arg_max(CAST(bid + ask AS DOUBLE) / 2, ts) AS mid
    FROM quotes WHERE bid IS NOT NULL AND ask IS NOT NULL GROUP BY 1) s) x
WHERE r IS NOT NULL

-- question volatility by high and low of each minute
SELECT sqrt(avg(power(ln(high / low), 2)) / (4 * ln(2))) AS deviation FROM (
  SELECT time_bucket(60000000000, ts) AS minute, CAST(max(price) AS DOUBLE) AS high, CAST(min(price) AS DOUBLE) AS low
  FROM trades GROUP BY 1) bars
-- duckdb
SELECT sqrt(avg(power(ln(high / low), 2)) / (4 * ln(2))) AS deviation FROM (
  SELECT ts // 60000000000 AS minute, CAST(max(price) AS DOUBLE) AS high, CAST(min(price) AS DOUBLE) AS low
  FROM trades GROUP BY 1) bars

-- question the ten best levels at 9:36
SELECT side, level, price, size, orders FROM book('aapl', 'AAPL', TIMESTAMP '2019-12-30 09:36:00', 10)
ORDER BY side, level
-- duckdb
SELECT side, level, price, size, orders FROM depth WHERE ts = 34560000000000 AND level <= 10 ORDER BY side, level

-- question the whole book at a nanosecond
SELECT side, level, price, size, orders FROM book('aapl', 'AAPL', '2019-12-30 09:37:30.123456789', 1000000)
ORDER BY side, level
-- duckdb
SELECT side, level, price, size, orders FROM depth WHERE ts = 34650123456789 ORDER BY side, level

-- question depth within ten cents of the best price
WITH b AS (SELECT * FROM book('aapl', 'AAPL', '09:39', 1000000)),
     best AS (SELECT side, price FROM b WHERE level = 1)
SELECT b.side, count(*) AS levels, sum(b.size) AS shares, sum(b.orders) AS orders
FROM b JOIN best ON b.side = best.side WHERE abs(b.price - best.price) <= 0.1 GROUP BY b.side ORDER BY b.side
-- duckdb
WITH b AS (SELECT * FROM depth WHERE ts = 34740000000000),
     best AS (SELECT side, price FROM b WHERE level = 1)
SELECT b.side, count(*) AS levels, sum(b.size)::BIGINT AS shares, sum(b.orders)::BIGINT AS orders
FROM b JOIN best ON b.side = best.side WHERE abs(b.price - best.price) <= 0.1 GROUP BY b.side ORDER BY b.side

-- question imbalance of the quote before each trade, by side
SELECT t.side, avg(CAST(q.bid_size AS DOUBLE) / (q.bid_size + q.ask_size)) AS imbalance, count(*) AS trades
FROM trades t ASOF JOIN quotes q MATCH_CONDITION (t.ts > q.ts) ON t.symbol = q.symbol
WHERE q.bid IS NOT NULL AND q.ask IS NOT NULL GROUP BY t.side ORDER BY t.side
-- duckdb
SELECT t.side, avg(CAST(q.bid_size AS DOUBLE) / (q.bid_size + q.ask_size)) AS imbalance, count(*) AS trades
FROM trades t ASOF LEFT JOIN quotes q ON t.symbol = q.symbol AND t.ts > q.ts
WHERE q.bid IS NOT NULL AND q.ask IS NOT NULL GROUP BY t.side ORDER BY t.side

-- question the longest silences
SELECT seq, ts - before AS silence FROM (SELECT seq, ts, lag(ts) OVER (ORDER BY seq) AS before FROM messages) m
WHERE before IS NOT NULL ORDER BY silence DESC, seq LIMIT 10

-- question hidden volume by minute
SELECT time_bucket(60000000000, ts) AS minute, CAST(sum(shares) FILTER (WHERE type = 'P') AS DOUBLE) / sum(shares) AS hidden
FROM trades GROUP BY 1 ORDER BY 1
-- duckdb
SELECT ts // 60000000000 * 60000000000 AS minute, sum(shares) FILTER (WHERE type = 'P')::DOUBLE / sum(shares)::DOUBLE AS hidden
FROM trades GROUP BY 1 ORDER BY 1
