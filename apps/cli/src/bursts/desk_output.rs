//! How the answers of a desk are printed.

use std::net::SocketAddr;
use std::time::Duration;

use evenfall_core::nearest_rank;
use evenfall_query_member::desk::DeskAnswer;
use evenfall_query_member::desk::nbbo::{BestSide, JudgedFill, NbboAnswer, SymbolNbbo};
use evenfall_query_member::desk::reprice::{AccountChange, CHANGE_UNITS, RepriceAnswer};
use serde_json::{Value, json};

use super::desk::AskedDesk;
use crate::Outcome;

/// A dollar in 1/10,000 dollar.
const PRICE_UNITS: f64 = 10_000.0;
/// Rows of a table that are printed for people. JSON has all.
const ROWS_SHOWN: usize = 10;

/// The times of answers.
pub struct AskTimes(Vec<Duration>);

impl AskTimes {
    /// These times, in any order.
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The time that this share of the answers did not exceed, in microseconds.
    fn at_us(&self, share: f64) -> Option<f64> {
        nearest_rank(&self.0, share).map(|time| time.as_nanos() as f64 / 1e3)
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).trim_end().to_owned()
}

fn dollars(price: i64) -> f64 {
    price as f64 / PRICE_UNITS
}

fn account_json(row: &AccountChange) -> Value {
    json!({
        "account": text(&row.account), "change_dollars": row.change as f64 / CHANGE_UNITS,
        "positions": row.positions, "unpriced": row.unpriced,
    })
}

fn reprice_json(answer: &RepriceAnswer) -> Value {
    json!({
        "accounts": answer.accounts, "positions": answer.positions, "unpriced": answer.unpriced,
        "change_dollars": answer.change as f64 / CHANGE_UNITS,
        "worst": answer.worst.iter().map(account_json).collect::<Vec<_>>(),
    })
}

/// A side with the worker that recorded its venue.
fn side_json(side: Option<BestSide>, venues: &[SocketAddr]) -> Value {
    side.map_or(Value::Null, |side| {
        // Whoever asked is rank 0, so that venues count from 1.
        let venue = venues.get(usize::from(side.venue).wrapping_sub(1));
        json!({"price": dollars(side.price), "shares": side.shares, "venue": venue})
    })
}

fn symbol_json(row: &SymbolNbbo, venues: &[SocketAddr]) -> Value {
    json!({
        "symbol": text(&row.symbol), "bid": side_json(row.bid, venues),
        "ask": side_json(row.ask, venues), "quotes": row.quotes, "changes": row.changes,
        "trades": row.trades, "traded_through": row.through,
    })
}

fn fill_json(row: &JudgedFill) -> Value {
    json!({
        "fill": row.fill, "bid": row.bid.map(dollars), "ask": row.ask.map(dollars),
        "traded_through": row.through,
        "markout_dollars": row.markout.map(|markout| markout as f64 / CHANGE_UNITS),
    })
}

fn nbbo_json(answer: &NbboAnswer, venues: &[SocketAddr]) -> Value {
    json!({
        "symbols": answer.symbols.iter().map(|row| symbol_json(row, venues)).collect::<Vec<_>>(),
        "fills": answer.fills.iter().map(fill_json).collect::<Vec<_>>(),
    })
}

/// Prints the answer. It fails when a plain program has another.
pub fn tell_answer(asked: &AskedDesk, is_plain: Option<bool>, is_json: bool) -> Outcome {
    let (answer, output) = (&asked.answer, &asked.answer.output);
    let venues: Vec<SocketAddr> =
        answer.workers.iter().map(|&worker| asked.workers[worker]).collect();
    if is_json {
        let missing = answer.missing.iter().map(
            |one| json!({"worker": one.worker, "address": one.address, "why": one.why.to_string()}),
        );
        let rows = match &output.answer {
            Some(DeskAnswer::Reprice(answer)) => reprice_json(answer),
            Some(DeskAnswer::Nbbo(answer)) => nbbo_json(answer, &venues),
            None => Value::Null,
        };
        let result = json!({
            "answer_us": {"p50": asked.times.at_us(0.5), "p99": asked.times.at_us(0.99)},
            "asks": asked.times.0.len() as u32 + asked.unanswered, "unanswered": asked.unanswered,
            "workers": answer.workers.len(), "missing": missing.collect::<Vec<_>>(),
            "attempts": answer.attempts, "rows": output.rows, "bytes_moved": output.bytes_moved,
            "window_ns": output.window_ns, "answer_equals_plain": is_plain, "answer": rows,
        });
        say!("{result}");
    } else {
        tell_people(asked, &venues);
    }
    match is_plain {
        Some(false) => Err("the answer differs from that of a plain program".into()),
        _ => Ok(()),
    }
}

fn tell_people(asked: &AskedDesk, venues: &[SocketAddr]) {
    let (answer, output) = (&asked.answer, &asked.answer.output);
    match &output.answer {
        Some(DeskAnswer::Reprice(reprice)) => tell_reprice(reprice),
        Some(DeskAnswer::Nbbo(nbbo)) => tell_nbbo(nbbo, venues),
        None => {}
    }
    say!(
        "  {} rows of {} workers, {} bytes moved",
        output.rows,
        answer.workers.len(),
        output.bytes_moved
    );
    if let (Some(p50), Some(p99)) = (asked.times.at_us(0.5), asked.times.at_us(0.99)) {
        say!("  answered in {p50:.0} us in the median, {p99:.0} us at the 99th percentile");
    }
    for missing in &answer.missing {
        say!("  missing: worker {} at {}: {}", missing.worker, missing.address, missing.why);
    }
}

fn tell_reprice(answer: &RepriceAnswer) {
    let change = answer.change as f64 / CHANGE_UNITS;
    say!("{} accounts with {} positions: {change:+.2} dollars", answer.accounts, answer.positions);
    if answer.unpriced > 0 {
        say!("  {} positions have no price on both sides", answer.unpriced);
    }
    for row in answer.worst.iter().take(ROWS_SHOWN) {
        say!("  {:<16} {:>+16.2}", text(&row.account), row.change as f64 / CHANGE_UNITS);
    }
}

fn tell_nbbo(answer: &NbboAnswer, venues: &[SocketAddr]) {
    let sum = |of: fn(&SymbolNbbo) -> u32| -> u64 {
        answer.symbols.iter().map(|row| u64::from(of(row))).sum()
    };
    say!(
        "{} symbols: {} changes of the best bid and offer, {} of {} trades traded through",
        answer.symbols.len(),
        sum(|row| row.changes),
        sum(|row| row.through),
        sum(|row| row.trades)
    );
    let through = answer.fills.iter().filter(|fill| fill.through == Some(true)).count();
    if !answer.fills.is_empty() {
        say!("  {through} of {} fills traded through", answer.fills.len());
    }
    let side = |side: Option<BestSide>| match side {
        Some(BestSide { price, shares, venue }) => {
            let venue = venues.get(usize::from(venue).wrapping_sub(1));
            let venue = venue.map_or_else(String::new, ToString::to_string);
            format!("{:.4} x {shares} at {venue}", dollars(price))
        }
        None => "none".to_owned(),
    };
    for row in answer.symbols.iter().take(ROWS_SHOWN) {
        say!("  {:<8} bid {:<36} ask {}", text(&row.symbol), side(row.bid), side(row.ask));
    }
}
