//! Both answers by one process that has the rows of all venues, such as recordings in a store.
//!
//! The steps are those of the ranks, without the ranks: each venue is scanned, and the tables are
//! merged. The answers are therefore those that standing workers would give over the same rows.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use super::recent::{RecentConfig, RecentRows, RecentSnapshot, SymbolName};
use super::reprice::{self, DeskPosition, PositionBook, RepriceAnswer};
use super::{
    DeskAnswer, DeskAsk, DeskQuestion, DeskRefusal, TableHead, TimedQuestion, merge_tables, nbbo,
};

/// Ranks of an exchange in which one worker merges all symbols.
const ASKER_AND_WORKER: u16 = 2;

/// The last seconds of a venue. Quotes and trades may have come one after the other, so each list
/// has times of its own.
#[derive(Clone, Debug, Default)]
pub struct VenueRows {
    /// Quotes of each stream of the venue.
    pub quotes: Vec<RecentSnapshot>,
    /// Trades of each stream.
    pub trades: Vec<RecentSnapshot>,
}

impl VenueRows {
    fn list_snapshots(&self) -> impl Iterator<Item = &RecentSnapshot> {
        self.quotes.iter().chain(&self.trades)
    }
}

/// Answers a question about the window that ends with this time. Venues are numbered from 1. A
/// position is marked by the first venue that quotes its symbol.
///
/// # Errors
/// When rows of the window left because of a limit.
pub fn answer_in_place(
    venues: &[VenueRows],
    positions: Vec<DeskPosition>,
    ask: &DeskAsk,
    until_ns: i64,
) -> Result<DeskAnswer, DeskRefusal> {
    let question = TimedQuestion { of: ask.of, until_ns, window: ask.window };
    for rows in venues.iter().flat_map(VenueRows::list_snapshots) {
        rows.check_window(ask.window, question.after_ns())?;
    }
    Ok(match ask.of {
        DeskQuestion::Reprice => {
            let times = [question.after_ns(), until_ns];
            DeskAnswer::Reprice(reprice_in_place(venues, positions, times, ask.worst))
        }
        DeskQuestion::Nbbo { .. } => {
            let window = question.nbbo_window();
            // The asker sends its fills, and is no venue.
            let fills = nbbo::exchange_fills(&ask.fills, ASKER_AND_WORKER);
            let mut messages = vec![fills.concat().into()];
            messages.extend(venues.iter().map(|venue| {
                let mut rows = BytesMut::new();
                for snapshot in venue.list_snapshots() {
                    let (parts, _) = nbbo::exchange_venue(snapshot, window, ASKER_AND_WORKER);
                    parts.iter().for_each(|part| rows.extend_from_slice(part));
                }
                rows.freeze()
            }));
            DeskAnswer::Nbbo(nbbo::merge_symbols(&messages, window))
        }
    })
}

fn reprice_in_place(
    venues: &[VenueRows],
    positions: Vec<DeskPosition>,
    times: [i64; 2],
    worst: usize,
) -> RepriceAnswer {
    let mut quotes: Vec<&RecentSnapshot> = venues.iter().flat_map(|venue| &venue.quotes).collect();
    // Positions of symbols that nobody quotes are counted too.
    let none = RecentRows::new(RecentConfig::default()).snapshot();
    quotes.push(&none);
    let mut homes: BTreeMap<SymbolName, usize> = BTreeMap::new();
    for (place, rows) in quotes.iter().enumerate() {
        for symbol in 0..rows.symbol_count() as u32 {
            homes.entry(rows.name(symbol)).or_insert(place);
        }
    }
    let mut of_place = vec![Vec::new(); quotes.len()];
    for position in positions {
        let place = homes.get(&position.symbol).copied().unwrap_or(quotes.len() - 1);
        of_place[place].push(position);
    }
    let sum = |(rows, positions): (&&RecentSnapshot, Vec<DeskPosition>)| -> Bytes {
        let changes = reprice::sum_changes(rows, &PositionBook::new(positions), times);
        reprice::encode_changes(TableHead::default(), &changes)
    };
    let tables: Vec<Bytes> = quotes.iter().zip(of_place).map(sum).collect();
    reprice::decode_reprice(&merge_tables(DeskQuestion::Reprice, &tables), worst)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::made::{MadeFeed, play_rows};
    use super::super::plain::{PlainRows, answer_plainly};
    use super::*;

    fn venue_of(rows: &PlainRows, window: Duration) -> VenueRows {
        let config = RecentConfig { keep: window, ..RecentConfig::default() };
        let part = |part: PlainRows| {
            let mut recent = RecentRows::new(config);
            play_rows(&part, &mut recent);
            vec![recent.snapshot()]
        };
        let (quotes, trades) = (rows.quotes.clone(), rows.trades.clone());
        VenueRows {
            quotes: part(PlainRows { quotes, ..PlainRows::default() }),
            trades: part(PlainRows { trades, ..PlainRows::default() }),
        }
    }

    #[test]
    fn answers_in_one_place_are_those_of_plain_programs() {
        let window = Duration::from_secs(2);
        let nbbo = DeskQuestion::Nbbo { markout: Duration::from_millis(100) };
        for (seed, of) in (0..20).flat_map(|seed| [(seed, nbbo), (seed, DeskQuestion::Reprice)]) {
            let feed = MadeFeed {
                seed,
                workers: 3,
                symbols: 6,
                rows: 150,
                accounts: 9,
                positions: 80,
                fills: 12,
                span_ns: 4_000_000_000,
                by_venue: of == nbbo,
            };
            let rows: Vec<PlainRows> = (0..3).map(|worker| feed.rows_of(worker)).collect();
            let venues: Vec<VenueRows> = rows.iter().map(|rows| venue_of(rows, window)).collect();
            let times = rows.iter().flat_map(|rows| {
                let quotes = rows.quotes.iter().map(|(_, quote)| quote.time_ns);
                quotes.chain(rows.trades.iter().map(|(_, trade)| trade.time_ns))
            });
            let until_ns = times.max().unwrap_or(0);
            let ask = DeskAsk { of, window, worst: 4, fills: feed.make_fills().into() };
            let positions = rows.iter().flat_map(|rows| rows.positions.clone()).collect();
            let answer = answer_in_place(&venues, positions, &ask, until_ns);
            let plain = answer_plainly(&rows, &ask, [until_ns - 2_000_000_000, until_ns]);
            assert_eq!(answer, Ok(plain), "seed {seed}");
        }
    }

    #[test]
    fn no_rows_give_unpriced_positions_and_no_symbols() {
        let position = DeskPosition { symbol: *b"A       ", account: [b'x'; 16], quantity: 5 };
        let mut ask = DeskAsk {
            of: DeskQuestion::Reprice,
            window: Duration::from_secs(1),
            worst: 3,
            fills: [].into(),
        };
        let Ok(DeskAnswer::Reprice(answer)) = answer_in_place(&[], vec![position], &ask, 0) else {
            panic!("an answer of reprice");
        };
        assert_eq!((answer.positions, answer.unpriced, answer.change), (1, 1, 0));
        ask.of = DeskQuestion::Nbbo { markout: Duration::ZERO };
        let answer = answer_in_place(&[VenueRows::default()], Vec::new(), &ask, 0);
        assert_eq!(answer, Ok(DeskAnswer::Nbbo(nbbo::NbboAnswer::default())));
    }
}
