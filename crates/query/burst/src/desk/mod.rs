//! What a desk asks of workers that hold the last seconds of a feed.
//!
//! ```text
//!  reprice   positions lie at the worker of their symbol: marks now and one window ago,
//!            sums by account up the tree
//!  nbbo      quotes, trades and fills exchanged by symbol: best bid and offer over venues,
//!            executions beside it, one table up the tree
//! ```
//!
//! Both are programs of a [standing group](crate::standing): whoever asks is rank 0 and has no rows
//! but the fills of the desk. All workers answer for the same window, which ends with the newest
//! row that any of them held at the roll call.
//!
//! | module | what it holds |
//! |---|---|
//! | [`recent`] | the last seconds in columns |
//! | [`reprice`], [`nbbo`] | the two questions |
//! | [`in_place`] | both answers by one process that has the rows of all venues |
//! | [`plain`] | both answers by plain programs, for tests and checks |
//! | [`made`] | generated quotes, trades, positions and fills |

pub mod in_place;
pub mod made;
pub mod nbbo;
pub mod plain;
pub mod recent;
pub mod reprice;

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_collectives_machine::group::{Collective, CollectiveOutcome, MergeRule};

use self::nbbo::{DeskFill, NbboAnswer, NbboWindow};
use self::recent::RecentSnapshot;
use self::reprice::{DeskPosition, PositionBook, RepriceAnswer};
use crate::burst::{Actions, BurstProgram, WorkKind, WorkResult, take_result};
use crate::standing::{AnswerPlan, HeldRows, QuestionPlan, RankPlace};

/// Bytes in front of the rows of a table that goes up the tree.
pub(crate) const TABLE_HEAD_BYTES: usize = 16;

const EXCHANGE: u32 = 0;
const REDUCE: u32 = 1;

const SCAN: u32 = 0;
const MERGE: u32 = 1;

/// What a table counts besides its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableHead {
    /// Rows that were read for it.
    pub rows: u64,
    /// Bytes that were sent from rank to rank for it, without headers.
    pub moved: u64,
}

impl TableHead {
    fn encode(self, bytes: &mut BytesMut) {
        bytes.put_u64_le(self.rows);
        bytes.put_u64_le(self.moved);
    }

    fn decode(table: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes = table.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        Self { rows: word(0), moved: word(8) }
    }

    /// The head of merged tables. The first is the rank's own, and the others were sent to it.
    fn merged(tables: &[Bytes]) -> Self {
        let heads = tables.iter().map(|table| Self::decode(table));
        let sent: u64 = tables.iter().skip(1).map(|table| table.len() as u64).sum();
        heads.fold(Self { rows: 0, moved: sent }, |sum, head| Self {
            rows: sum.rows.saturating_add(head.rows),
            moved: sum.moved.saturating_add(head.moved),
        })
    }
}

/// The lines of a table behind its heading: number of the line, and its cells or what is wrong.
fn csv_rows<'a>(
    text: &'a str,
    heading: &'static str,
) -> impl Iterator<Item = (usize, Result<Vec<&'a str>, String>)> {
    let columns = heading.split(',').count();
    let has_heading = text.lines().next().is_some_and(|line| line.trim() == heading);
    let wrong = (!has_heading).then(|| (1, Err(format!("the first line must be {heading}"))));
    let lines = text.lines().enumerate().skip(1).filter(move |_| has_heading);
    let rows = lines.filter(|(_, line)| !line.trim().is_empty()).map(move |(at, line)| {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let count = cells.len();
        let row = match count == columns {
            true => Ok(cells),
            false => Err(format!("{count} values where {heading} are {columns}")),
        };
        (at + 1, row)
    });
    wrong.into_iter().chain(rows)
}

/// What a desk asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeskQuestion {
    /// What the window did to positions.
    Reprice,
    /// The best bid and offer over venues, and fills beside it.
    Nbbo {
        /// Time between a fill and its markout.
        markout: Duration,
    },
}

impl DeskQuestion {
    /// A window for `nbbo`, behind the first time and up to the second.
    fn nbbo_window(self, [after_ns, until_ns]: [i64; 2]) -> NbboWindow {
        let markout = match self {
            Self::Reprice => Duration::ZERO,
            Self::Nbbo { markout } => markout,
        };
        NbboWindow { after_ns, until_ns, markout_ns: signed_ns(markout) }
    }

    /// How tables become one on their way up the tree.
    fn merge_rule(self) -> MergeRule {
        match self {
            Self::Reprice => reprice::ADD_ACCOUNTS,
            Self::Nbbo { .. } => nbbo::JOIN_SYMBOLS,
        }
    }
}

/// A question with its times, as it is sent.
///
/// ```text
///  0      1         9           17         25
///  | kind | until i64 | window ns | markout ns |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedQuestion {
    /// What is asked.
    pub of: DeskQuestion,
    /// The window ends with this time.
    pub until_ns: i64,
    /// Length of the window.
    pub window: Duration,
}

/// Why a worker takes no part in a question of a desk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeskRefusal {
    /// The question has another length.
    #[error("a question of {bytes} bytes, and not {}", TimedQuestion::BYTES)]
    Length {
        /// Its bytes.
        bytes: usize,
    },
    /// Nothing is known of this kind of a question.
    #[error("question {kind} is not known: there are reprice and nbbo")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// The worker holds less than the window.
    #[error("holds the last {} s, not {} s", .keep.as_secs_f64(), .asked.as_secs_f64())]
    Window {
        /// What it holds.
        keep: Duration,
        /// The window.
        asked: Duration,
    },
    /// Rows of the window left because of a limit.
    #[error(
        "the oldest {:.3} s left, because its limit of rows was reached",
        .short.as_secs_f64()
    )]
    Limit {
        /// The part of the window that is gone.
        short: Duration,
    },
    /// Rows of the window left while the question was under way.
    #[error("the oldest {:.3} s have left since", .short.as_secs_f64())]
    Late {
        /// The part of the window that is gone.
        short: Duration,
    },
}

impl TimedQuestion {
    /// Bytes of a question.
    pub const BYTES: usize = 25;

    /// The window begins behind this time.
    pub fn after_ns(&self) -> i64 {
        self.until_ns.saturating_sub(signed_ns(self.window))
    }

    /// The bytes of the question.
    pub fn encode(&self) -> Bytes {
        let (kind, markout) = match self.of {
            DeskQuestion::Reprice => (1, Duration::ZERO),
            DeskQuestion::Nbbo { markout } => (2, markout),
        };
        let mut bytes = BytesMut::with_capacity(Self::BYTES);
        bytes.put_u8(kind);
        bytes.put_i64_le(self.until_ns);
        bytes.put_i64_le(signed_ns(self.window));
        bytes.put_i64_le(signed_ns(markout));
        bytes.freeze()
    }

    /// Reads a question.
    ///
    /// # Errors
    /// When the length or the kind is unknown.
    pub fn decode(bytes: &[u8]) -> Result<Self, DeskRefusal> {
        let Ok(bytes): Result<&[u8; Self::BYTES], _> = bytes.try_into() else {
            return Err(DeskRefusal::Length { bytes: bytes.len() });
        };
        let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let time = |at| Duration::from_nanos(u64::try_from(word(at)).unwrap_or(0));
        let of = match bytes[0] {
            1 => DeskQuestion::Reprice,
            2 => DeskQuestion::Nbbo { markout: time(17) },
            kind => {
                return Err(DeskRefusal::Kind { kind });
            }
        };
        Ok(Self { of, until_ns: word(1), window: time(9) })
    }

    /// The times of the question for `nbbo`.
    pub fn nbbo_window(&self) -> NbboWindow {
        self.of.nbbo_window([self.after_ns(), self.until_ns])
    }
}

fn signed_ns(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// The answer of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeskAnswer {
    /// Sums by account, ascending by name. [`reprice::answer_reprice`] has done the rest.
    Reprice(RepriceAnswer),
    /// Symbols and fills.
    Nbbo(NbboAnswer),
}

/// What a rank has after a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeskOutput {
    /// The answer at rank 0, and nothing elsewhere.
    pub answer: Option<DeskAnswer>,
    /// Rows that all ranks read, and bytes that they sent each other; at rank 0 alone.
    pub rows: u64,
    /// Bytes from rank to rank.
    pub bytes_moved: u64,
    /// The window of the answer, as time behind which it begins and time with which it ends.
    pub window_ns: [i64; 2],
}

/// The part of a rank: what it reads.
#[derive(Debug)]
enum Source {
    Positions {
        rows: RecentSnapshot,
        positions: Arc<PositionBook>,
    },
    Venue {
        rows: RecentSnapshot,
    },
    /// The asker, with its fills for `nbbo`.
    Asker {
        fills: Arc<[DeskFill]>,
    },
}

/// One rank of a question.
#[derive(Debug)]
pub struct DeskProgram {
    rank: u16,
    ranks: Arc<[u16]>,
    question: TimedQuestion,
    source: Option<Source>,
    worst: usize,
    head: TableHead,
}

/// What a scan of a venue gives.
struct Exchanged {
    messages: Vec<Bytes>,
    rows: u64,
}

impl DeskProgram {
    fn reduce(&self, table: Bytes, out: &mut Actions<DeskOutput>) {
        out.begin_phase("reduce");
        let by = self.question.of.merge_rule();
        out.call(REDUCE, self.ranks.clone(), Collective::Merge { root: 0, body: table, by });
    }

    fn exchange(&mut self, messages: Vec<Bytes>, out: &mut Actions<DeskOutput>) {
        out.begin_phase("exchange");
        // A rank's message for itself does not travel.
        let others = (0..).zip(&messages).filter(|(to, _)| *to != self.rank);
        self.head.moved = others.map(|(_, message)| message.len() as u64).sum();
        out.call(EXCHANGE, self.ranks.clone(), Collective::Shuffle { messages });
    }

    fn answer(&self, table: &Bytes) -> DeskAnswer {
        match self.question.of {
            DeskQuestion::Reprice => {
                DeskAnswer::Reprice(reprice::decode_reprice(table, self.worst))
            }
            DeskQuestion::Nbbo { .. } => DeskAnswer::Nbbo(nbbo::decode_nbbo(table)),
        }
    }
}

impl BurstProgram for DeskProgram {
    type Output = DeskOutput;

    const STEPS: u32 = 2;

    fn begin(&mut self, out: &mut Actions<DeskOutput>) {
        let (question, ranks) = (self.question, self.ranks.len() as u16);
        match self.source.take() {
            Some(Source::Positions { rows, positions }) => {
                out.begin_phase("scan");
                let items = rows.rows() + positions.len();
                let count = rows.rows() as u64;
                let times = [question.after_ns(), question.until_ns];
                out.work(SCAN, WorkKind::Scan, items, move || {
                    let changes = reprice::sum_changes(&rows, &positions, times);
                    let head = TableHead { rows: count, moved: 0 };
                    reprice::encode_changes(head, &changes)
                });
            }
            Some(Source::Venue { rows }) => {
                out.begin_phase("scan");
                let window = question.nbbo_window();
                out.work(SCAN, WorkKind::Scan, rows.rows(), move || {
                    let (messages, rows) = nbbo::exchange_venue(&rows, window, ranks);
                    Exchanged { messages, rows }
                });
            }
            Some(Source::Asker { fills }) => match question.of {
                DeskQuestion::Reprice => {
                    let table = reprice::encode_changes(TableHead::default(), &[]);
                    self.reduce(table, out);
                }
                DeskQuestion::Nbbo { .. } => {
                    self.head.rows = fills.len() as u64;
                    self.exchange(nbbo::exchange_fills(&fills, ranks), out);
                }
            },
            None => {}
        }
    }

    fn here(
        &mut self,
        step: u32,
        outcome: CollectiveOutcome,
        out: &mut Actions<DeskOutput>,
    ) -> Result<(), u16> {
        match (step, outcome) {
            (EXCHANGE, CollectiveOutcome::All(messages)) => {
                out.end_phase("exchange");
                nbbo::check_exchanged(&messages).map_err(|place| self.ranks[place])?;
                out.begin_phase("merge");
                let (window, head) = (self.question.nbbo_window(), self.head);
                let items = messages.iter().map(|m| m.len() / nbbo::EXCHANGED_BYTES).sum();
                out.work(MERGE, WorkKind::Join, items, move || {
                    nbbo::encode_nbbo(head, &nbbo::merge_symbols(&messages, window))
                });
            }
            (REDUCE, outcome) => {
                out.end_phase("reduce");
                let window_ns = [self.question.after_ns(), self.question.until_ns];
                let none = DeskOutput { answer: None, rows: 0, bytes_moved: 0, window_ns };
                out.finish(match outcome {
                    CollectiveOutcome::One(table) => {
                        let TableHead { rows, moved } = TableHead::decode(&table);
                        let answer = Some(self.answer(&table));
                        DeskOutput { answer, rows, bytes_moved: moved, window_ns }
                    }
                    _ => none,
                });
            }
            _ => {}
        }
        Ok(())
    }

    fn worked(
        &mut self,
        job: u32,
        result: WorkResult,
        out: &mut Actions<DeskOutput>,
    ) -> Result<(), u16> {
        match (job, self.question.of) {
            (SCAN, DeskQuestion::Reprice) => {
                out.end_phase("scan");
                self.reduce(take_result::<Bytes>(result), out);
            }
            (SCAN, DeskQuestion::Nbbo { .. }) => {
                out.end_phase("scan");
                let Exchanged { messages, rows } = take_result(result);
                self.head.rows = rows;
                self.exchange(messages, out);
            }
            _ => {
                out.end_phase("merge");
                self.reduce(take_result::<Bytes>(result), out);
            }
        }
        Ok(())
    }
}

/// Merges the tables of several ranks into one, as the tree does.
pub fn merge_tables(of: DeskQuestion, tables: &[Bytes]) -> Bytes {
    (of.merge_rule().merge)(tables)
}

/// What a worker answers the questions of a desk with: a moment of its rows, and its positions.
pub trait RecentSource {
    /// The rows as they are now.
    fn snapshot(&self) -> RecentSnapshot;

    /// Number of rows, and the time of the newest.
    fn held(&self) -> HeldRows;
}

impl RecentSource for recent::RecentRows {
    fn snapshot(&self) -> RecentSnapshot {
        Self::snapshot(self)
    }

    fn held(&self) -> HeldRows {
        HeldRows { rows: self.rows() as u64, newest_ns: self.newest_ns() }
    }
}

/// A worker's plan.
#[derive(Debug)]
pub struct DeskWorkerPlan<S> {
    source: S,
    positions: Arc<PositionBook>,
}

impl<S: RecentSource> DeskWorkerPlan<S> {
    /// Answers from these rows, and for these positions.
    pub fn new(source: S, positions: Vec<DeskPosition>) -> Self {
        Self { source, positions: Arc::new(PositionBook::new(positions)) }
    }
}

impl<S: RecentSource> AnswerPlan for DeskWorkerPlan<S> {
    type Program = DeskProgram;

    fn answer(&mut self, question: &Bytes, place: RankPlace) -> Result<DeskProgram, String> {
        let question = TimedQuestion::decode(question).map_err(|error| error.to_string())?;
        let rows = self.source.snapshot();
        let is_whole = rows.check_window(question.window, question.after_ns());
        is_whole.map_err(|error| error.to_string())?;
        let source = match question.of {
            DeskQuestion::Reprice => Source::Positions { rows, positions: self.positions.clone() },
            DeskQuestion::Nbbo { .. } => Source::Venue { rows },
        };
        Ok(program(place, question, source, 0))
    }

    fn held(&self) -> HeldRows {
        self.source.held()
    }
}

fn program(place: RankPlace, question: TimedQuestion, source: Source, worst: usize) -> DeskProgram {
    let (ranks, head) = ((0..place.ranks).collect(), TableHead::default());
    DeskProgram { rank: place.rank, ranks, question, source: Some(source), worst, head }
}

/// A question of a desk, with its window and its fills.
#[derive(Clone, Debug)]
pub struct DeskAsk {
    /// What is asked.
    pub of: DeskQuestion,
    /// Length of the window.
    pub window: Duration,
    /// Of `reprice`: how many accounts the answer lists.
    pub worst: usize,
    /// Of `nbbo`: the fills of the desk.
    pub fills: Arc<[DeskFill]>,
}

impl QuestionPlan for DeskAsk {
    type Program = DeskProgram;

    fn question(&mut self, newest_ns: Option<i64>) -> Bytes {
        let until_ns = newest_ns.unwrap_or(0);
        TimedQuestion { of: self.of, until_ns, window: self.window }.encode()
    }

    fn program(&mut self, question: &Bytes, place: RankPlace) -> DeskProgram {
        // The bytes are those of `question` above; any others would be a question of no window.
        let timed = TimedQuestion::decode(question).unwrap_or(TimedQuestion {
            of: self.of,
            until_ns: 0,
            window: self.window,
        });
        program(place, timed, Source::Asker { fills: self.fills.clone() }, self.worst)
    }
}
