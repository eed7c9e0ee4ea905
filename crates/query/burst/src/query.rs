//! MilliQuery: three queries on the steps of a burst (section 2.6 of the thesis).
//!
//! ```text
//!  q1  sum of views by language          scan, then sums up the tree
//!  q2  ten addresses with most edits     count, shuffle by address, sums, top 10 up the tree
//!  q3  hundred (language, author) with   shuffle (repository, author) by repository,
//!      most bytes                        shuffle (repository, language, bytes) by repository,
//!                                        join, shuffle by (language, author), sums, top 100
//! ```
//!
//! Every rank starts with its own rows in memory, and rank 0 ends with the answer. The tree has six
//! children a rank, and an inner rank passes one merged table on.
//!
//! A row finds the rank that adds it up by a hash of its key, or by a range of keys
//! ([`KeyPlacement`]).
//!
//! The source does not say whether pairs are made unique and summed up *before* a shuffle or only
//! behind it. [`Duplicates`] has both: before costs work and saves bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_collectives_machine::group::{Collective, CollectiveOutcome, MergeRule};
use evenfall_core::Malformed;

use crate::burst::{Actions, BurstProgram, WorkKind, WorkResult, take_result};
use crate::partition::{PARTITION_JOBS, PARTITION_STEPS, Partition};
use crate::pivots::Tag;
use crate::placement::{KeyPlacement, KeyPlaces, range_partition, sorted_tags};

/// Rows of the answer of q2.
pub const TOP_ADDRESSES: usize = 10;
/// Rows of the answer of q3.
pub const TOP_PAIRS: usize = 100;
/// Bytes of a row of sums.
const ROW_BYTES: usize = 16;

const SHUFFLE_PAIRS: u32 = 0;
const SHUFFLE_LANGUAGES: u32 = 1;
const SHUFFLE_SUMS: u32 = 2;
const REDUCE: u32 = 3;
/// The first step of the partition of rows, and of that of joined rows.
const ROW_RANGES: u32 = 4;
const SUM_RANGES: u32 = ROW_RANGES + PARTITION_STEPS;

const SCAN: u32 = 0;
const JOIN: u32 = 1;
const SUM: u32 = 2;
/// Sorts keys, for a partition.
const SORT: u32 = 3;
/// Gives each rank its rows, when the ranges are known.
const PLACE: u32 = 4;

/// The phases that a query reports.
pub const QUERY_PHASES: [&str; 5] = ["scan", "partition", "shuffle", "sum", "reduce"];

/// A key with its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SumRow {
    /// A language, an address, or a language and an author ([`pair_key`]).
    pub key: u64,
    /// Views, edits or bytes.
    pub sum: u64,
}

/// Two columns of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RepositoryRow {
    /// The repository.
    pub repository: u32,
    /// An author of the repository, or a language of it.
    pub of: u32,
    /// Bytes in the language; 1 for an author.
    pub count: u64,
}

/// The key of a language and an author.
pub fn pair_key(language: u32, author: u32) -> u64 {
    u64::from(language) << 32 | u64::from(author)
}

/// The language and the author of a key that [`pair_key`] has made.
pub fn pair_of(key: u64) -> (u32, u32) {
    ((key >> 32) as u32, key as u32)
}

/// The rows of one rank.
#[derive(Clone, Debug)]
pub enum QueryRows {
    /// q1: languages with views.
    Views(Vec<SumRow>),
    /// q2: the address of each edit.
    Edits(Vec<u32>),
    /// q3.
    Repositories {
        /// An author for each commit; authors repeat.
        commits: Vec<RepositoryRow>,
        /// Languages with bytes.
        languages: Vec<RepositoryRow>,
    },
}

impl QueryRows {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Views(rows) => rows.len(),
            Self::Edits(rows) => rows.len(),
            Self::Repositories { commits, languages } => commits.len() + languages.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// When equal rows become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// Before a shuffle, and behind it.
    OutBefore,
    /// Only behind the shuffle.
    OutAfter,
}

impl Duplicates {
    /// The name in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::OutBefore => "before",
            Self::OutAfter => "after",
        }
    }
}

/// The answer of a query.
pub type QueryAnswer = Vec<SumRow>;

/// What a rank has after a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryOutput {
    /// The answer at rank 0, and nothing elsewhere.
    pub answer: QueryAnswer,
    /// Rows that this rank added up last: those that the last shuffle brought, or its own rows
    /// where the query has no shuffle.
    pub summed: u64,
}

/// One rank of a query.
#[derive(Debug)]
pub struct MilliQuery {
    ranks: Arc<[u16]>,
    rows: Option<QueryRows>,
    duplicates: Duplicates,
    is_join: bool,
    top: Option<usize>,
    pairs: Option<Vec<Bytes>>,
    languages: Option<Vec<Bytes>>,
    summed: u64,
    ranges: Option<RangeSearch>,
}

/// Tables for each rank: what a shuffle sends.
type Messages = Vec<Bytes>;

/// The ranges of keys, while the ranks agree on them.
#[derive(Debug)]
struct RangeSearch {
    me: u16,
    partition: Partition,
    /// The rows that wait for the ranges.
    rows: Option<PlacedRows>,
}

impl RangeSearch {
    fn new(me: u16, ranks: usize, first_step: u32) -> Self {
        let partition = Partition::new(range_partition(), me, ranks).from_step(first_step);
        Self { me, partition, rows: None }
    }
}

/// Rows that one shuffle or two send.
#[derive(Debug)]
enum PlacedRows {
    Counts(Vec<SumRow>),
    Both { commits: Vec<RepositoryRow>, languages: Vec<RepositoryRow> },
    Sums(Vec<SumRow>),
}

impl PlacedRows {
    fn len(&self) -> usize {
        match self {
            Self::Counts(rows) | Self::Sums(rows) => rows.len(),
            Self::Both { commits, languages } => commits.len() + languages.len(),
        }
    }

    fn keys(&self) -> Vec<u64> {
        match self {
            Self::Counts(rows) | Self::Sums(rows) => rows.iter().map(|row| row.key).collect(),
            Self::Both { commits, languages } => {
                commits.iter().chain(languages).map(|row| row.repository.into()).collect()
            }
        }
    }

    /// The messages of the rows to the ranks of their keys.
    fn place(&self, places: &KeyPlaces, ranks: usize) -> Scanned {
        match self {
            Self::Counts(rows) => Scanned::Counts(by_key(rows, places, ranks)),
            Self::Sums(rows) => Scanned::Sums(by_key(rows, places, ranks)),
            Self::Both { commits, languages } => Scanned::Both {
                pairs: by_repository(commits, places, ranks),
                languages: by_repository(languages, places, ranks),
            },
        }
    }
}

impl MilliQuery {
    /// The query over these rows, as one of `ranks` takes part in it. The kind of the rows says
    /// which query it is, and all ranks have rows of the same kind.
    pub fn new(ranks: usize, rows: QueryRows, duplicates: Duplicates) -> Self {
        let top = match rows {
            QueryRows::Views(_) => None,
            QueryRows::Edits(_) => Some(TOP_ADDRESSES),
            QueryRows::Repositories { .. } => Some(TOP_PAIRS),
        };
        Self {
            ranks: (0..ranks as u16).collect(),
            summed: rows.len() as u64,
            is_join: matches!(rows, QueryRows::Repositories { .. }),
            rows: Some(rows),
            duplicates,
            top,
            pairs: None,
            languages: None,
            ranges: None,
        }
    }

    /// Sets the placement of keys, for the rank `me`. q1 has no shuffle, and so no placement.
    #[must_use]
    pub fn placed_by(self, placement: KeyPlacement, me: u16) -> Self {
        let is_range = placement == KeyPlacement::Range && self.top.is_some();
        let ranges = is_range.then(|| RangeSearch::new(me, self.ranks.len(), ROW_RANGES));
        Self { ranges, ..self }
    }

    fn reduce(&self, table: Vec<SumRow>, out: &mut Actions<QueryOutput>) {
        out.begin_phase("reduce");
        let by = match self.top {
            None => SUMS,
            Some(TOP_ADDRESSES) => TOP_10,
            Some(_) => TOP_100,
        };
        let body = encode(&table);
        out.call(REDUCE, self.ranks.clone(), Collective::Merge { root: 0, body, by });
    }

    fn join_when_here(&mut self, out: &mut Actions<QueryOutput>) {
        if self.pairs.is_none() || self.languages.is_none() {
            return;
        }
        let (Some(pairs), Some(languages)) = (self.pairs.take(), self.languages.take()) else {
            return;
        };
        let items = pairs.iter().chain(&languages).map(|body| body.len() / ROW_BYTES).sum();
        let (ranks, duplicates) = (self.ranks.len(), self.duplicates);
        let is_hash = self.ranges.is_none();
        out.work(JOIN, WorkKind::Join, items, move || {
            let rows = PlacedRows::Sums(one_each(joined(&pairs, &languages), duplicates));
            place_or_keep(rows, is_hash, ranks)
        });
    }

    /// Sorts the keys of rows, to agree with the other ranks on ranges.
    fn find_ranges(&mut self, rows: PlacedRows, out: &mut Actions<QueryOutput>) {
        let Some(search) = &mut self.ranges else { return };
        if let PlacedRows::Sums(_) = rows {
            // The phases do not overlap: the shuffle goes on when the rows are placed.
            out.end_phase("shuffle");
            *search = RangeSearch::new(search.me, self.ranks.len(), SUM_RANGES);
        }
        out.begin_phase("partition");
        let (keys, me) = (rows.keys(), search.me);
        search.rows = Some(rows);
        out.work(SORT, WorkKind::SortKeys, keys.len(), move || sorted_tags(keys.into_iter(), me));
    }

    /// The ranges are known: each row goes to its rank.
    fn place_rows(&mut self, splitters: &[Tag], out: &mut Actions<QueryOutput>) {
        out.end_phase("partition");
        let Some(rows) = self.ranges.as_mut().and_then(|search| search.rows.take()) else { return };
        let (places, ranks) = (KeyPlaces::of_splitters(splitters), self.ranks.len());
        out.work(PLACE, WorkKind::Scan, rows.len(), move || rows.place(&places, ranks));
    }

    /// Sends what a scan or a join has given.
    fn send_rows(&mut self, scanned: Scanned, out: &mut Actions<QueryOutput>) {
        let ranks = self.ranks.clone();
        let shuffle = |messages| Collective::Shuffle { messages };
        match scanned {
            Scanned::Table(table) => self.reduce(table, out),
            Scanned::Unplaced(rows) => self.find_ranges(rows, out),
            Scanned::Counts(messages) => {
                out.begin_phase("shuffle");
                out.call(SHUFFLE_PAIRS, ranks, shuffle(messages));
            }
            Scanned::Sums(messages) => {
                // By a hash, the phase has not ended since the first shuffle.
                if self.ranges.is_some() {
                    out.begin_phase("shuffle");
                }
                out.call(SHUFFLE_SUMS, ranks, shuffle(messages));
            }
            Scanned::Both { pairs, languages } => {
                out.begin_phase("shuffle");
                out.call(SHUFFLE_PAIRS, ranks.clone(), shuffle(pairs));
                out.call(SHUFFLE_LANGUAGES, ranks, shuffle(languages));
            }
        }
    }

    fn sum_parts(&mut self, parts: Vec<Bytes>, out: &mut Actions<QueryOutput>) {
        out.end_phase("shuffle");
        out.begin_phase("sum");
        let items = parts.iter().map(|body| body.len() / ROW_BYTES).sum();
        self.summed = items as u64;
        let top = self.top.unwrap_or(usize::MAX);
        out.work(SUM, WorkKind::Scan, items, move || {
            best(summed(parts.iter().flat_map(|body| decode(body))), top)
        });
    }

    /// The rank whose bytes are no table, if there is one.
    fn check(&self, parts: &[Bytes]) -> Result<(), u16> {
        match parts.iter().position(|body| !body.len().is_multiple_of(ROW_BYTES)) {
            Some(place) => Err(self.ranks[place]),
            None => Ok(()),
        }
    }
}

impl BurstProgram for MilliQuery {
    type Output = QueryOutput;

    const STEPS: u32 = SUM_RANGES + PARTITION_STEPS;

    fn begin(&mut self, out: &mut Actions<QueryOutput>) {
        out.begin_phase("scan");
        let Some(rows) = self.rows.take() else { return };
        let (ranks, duplicates) = (self.ranks.len(), self.duplicates);
        let is_hash = self.ranges.is_none();
        out.work(SCAN, WorkKind::Scan, rows.len(), move || {
            scanned(rows, duplicates, |rows| place_or_keep(rows, is_hash, ranks))
        });
    }

    fn here(
        &mut self,
        step: u32,
        outcome: CollectiveOutcome,
        out: &mut Actions<QueryOutput>,
    ) -> Result<(), u16> {
        match (step, outcome) {
            (ROW_RANGES.., outcome) => {
                let Some(search) = &mut self.ranges else { return Ok(()) };
                if let Some(splitters) = search.partition.here(step, outcome, out)? {
                    self.place_rows(&splitters, out);
                }
            }
            (REDUCE, outcome) => {
                out.end_phase("reduce");
                let answer = match outcome {
                    CollectiveOutcome::One(body) => decode(&body).collect(),
                    _ => Vec::new(),
                };
                out.finish(QueryOutput { answer, summed: self.summed });
            }
            (step, CollectiveOutcome::All(parts)) => {
                self.check(&parts)?;
                match step {
                    SHUFFLE_PAIRS if self.is_join => {
                        self.pairs = Some(parts);
                        self.join_when_here(out);
                    }
                    SHUFFLE_LANGUAGES => {
                        self.languages = Some(parts);
                        self.join_when_here(out);
                    }
                    _ => self.sum_parts(parts, out),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn worked(
        &mut self,
        job: u32,
        result: WorkResult,
        out: &mut Actions<QueryOutput>,
    ) -> Result<(), u16> {
        match job {
            PARTITION_JOBS.. => {
                let Some(search) = &mut self.ranges else { return Ok(()) };
                search.partition.worked(job, result, out)?;
            }
            SCAN => {
                out.end_phase("scan");
                self.send_rows(take_result(result), out);
            }
            SORT => {
                let Some(search) = &mut self.ranges else { return Ok(()) };
                search.partition.begin(&take_result::<Arc<[Tag]>>(result), out);
            }
            JOIN | PLACE => self.send_rows(take_result(result), out),
            _ => {
                out.end_phase("sum");
                let table = take_result::<Vec<SumRow>>(result);
                self.reduce(table, out);
            }
        }
        Ok(())
    }
}

/// What a rank has after its scan or its join.
#[derive(Debug)]
enum Scanned {
    Table(Vec<SumRow>),
    Unplaced(PlacedRows),
    Counts(Messages),
    Sums(Messages),
    Both { pairs: Messages, languages: Messages },
}

/// The messages of the rows by a hash, or the rows as they are, for a partition.
fn place_or_keep(rows: PlacedRows, is_hash: bool, ranks: usize) -> Scanned {
    match is_hash {
        true => rows.place(&KeyPlaces::Hash { ranks }, ranks),
        false => Scanned::Unplaced(rows),
    }
}

fn scanned(
    rows: QueryRows,
    duplicates: Duplicates,
    place: impl FnOnce(PlacedRows) -> Scanned,
) -> Scanned {
    match rows {
        QueryRows::Views(rows) => Scanned::Table(summed(rows.into_iter())),
        QueryRows::Edits(addresses) => {
            let row = |address| SumRow { key: u64::from(address), sum: 1 };
            let rows = addresses.into_iter().map(row).collect();
            place(PlacedRows::Counts(one_each(rows, duplicates)))
        }
        QueryRows::Repositories { mut commits, languages } => {
            if duplicates == Duplicates::OutBefore {
                commits.sort_unstable();
                commits.dedup();
            }
            place(PlacedRows::Both { commits, languages })
        }
    }
}

/// The rows as they are, or one for each key.
fn one_each(rows: Vec<SumRow>, duplicates: Duplicates) -> Vec<SumRow> {
    match duplicates {
        Duplicates::OutBefore => summed(rows.into_iter()),
        Duplicates::OutAfter => rows,
    }
}

/// One row for each key, ascending.
fn summed(rows: impl Iterator<Item = SumRow>) -> Vec<SumRow> {
    let mut rows: Vec<SumRow> = rows.collect();
    rows.sort_unstable_by_key(|row| row.key);
    rows.dedup_by(|next, row| {
        let same = next.key == row.key;
        if same {
            row.sum = row.sum.wrapping_add(next.sum);
        }
        same
    });
    rows
}

/// The rows with the largest sums, and of equal sums those with the least keys.
fn best(mut rows: Vec<SumRow>, count: usize) -> Vec<SumRow> {
    rows.sort_unstable_by_key(|row| (core::cmp::Reverse(row.sum), row.key));
    rows.truncate(count);
    rows
}

fn by_key(rows: &[SumRow], places: &KeyPlaces, ranks: usize) -> Messages {
    let mut messages = vec![BytesMut::new(); ranks];
    for row in rows {
        let message = &mut messages[places.rank_of(row.key)];
        message.put_u64_le(row.key);
        message.put_u64_le(row.sum);
    }
    messages.into_iter().map(BytesMut::freeze).collect()
}

/// All rows of a repository go to one rank: repository, author or language, count.
fn by_repository(rows: &[RepositoryRow], places: &KeyPlaces, ranks: usize) -> Messages {
    let mut messages = vec![BytesMut::new(); ranks];
    for row in rows {
        let message = &mut messages[places.rank_of(row.repository.into())];
        message.put_u64_le(pair_key(row.repository, row.of));
        message.put_u64_le(row.count);
    }
    messages.into_iter().map(BytesMut::freeze).collect()
}

/// Joins the authors of each repository with its languages.
fn joined(pairs: &[Bytes], languages: &[Bytes]) -> Vec<SumRow> {
    let rows = |parts: &[Bytes]| {
        let mut rows: Vec<SumRow> = parts.iter().flat_map(|body| decode(body)).collect();
        rows.sort_unstable();
        rows
    };
    let (mut authors, languages) = (rows(pairs), rows(languages));
    authors.dedup_by_key(|row| row.key);
    let repository = |row: &SumRow| row.key >> 32;
    let mut sums = Vec::new();
    let mut of = languages.chunk_by(|a, b| repository(a) == repository(b)).peekable();
    for group in authors.chunk_by(|a, b| repository(a) == repository(b)) {
        while of.next_if(|other| repository(&other[0]) < repository(&group[0])).is_some() {}
        let Some(same) = of.next_if(|other| repository(&other[0]) == repository(&group[0])) else {
            continue;
        };
        for author in group {
            let pair = |row: &SumRow| SumRow {
                key: pair_key(row.key as u32, author.key as u32),
                sum: row.sum,
            };
            sums.extend(same.iter().map(pair));
        }
    }
    sums
}

fn encode(rows: &[SumRow]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(ROW_BYTES * rows.len());
    for row in rows {
        bytes.put_u64_le(row.key);
        bytes.put_u64_le(row.sum);
    }
    bytes.freeze()
}

/// The rows of a table; a rest that is no row is left out, and was refused before.
fn decode(bytes: &[u8]) -> impl Iterator<Item = SumRow> + '_ {
    let (rows, _) = bytes.as_chunks::<ROW_BYTES>();
    rows.iter().map(|row| {
        let number = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| row[at + i]));
        SumRow { key: number(0), sum: number(8) }
    })
}

fn check_table(bytes: &[u8]) -> Result<(), Malformed> {
    match bytes.len().is_multiple_of(ROW_BYTES) {
        true => Ok(()),
        false => Err(Malformed { what: "no table of sums", offset: bytes.len() }),
    }
}

/// Adds tables up by key.
pub const SUMS: MergeRule = MergeRule {
    number: 1,
    check: check_table,
    merge: |tables| encode(&summed(tables.iter().flat_map(|table| decode(table)))),
};

/// Passes on the ten rows with the largest sums, of tables that share no key.
const TOP_10: MergeRule =
    MergeRule { number: 10, check: check_table, merge: |tables| top(tables, TOP_ADDRESSES) };

/// Passes on a hundred rows.
const TOP_100: MergeRule =
    MergeRule { number: 100, check: check_table, merge: |tables| top(tables, TOP_PAIRS) };

fn top(tables: &[Bytes], count: usize) -> Bytes {
    encode(&best(tables.iter().flat_map(|table| decode(table)).collect(), count))
}

/// The answer of a plain program that has the rows of all ranks in one place, for tests and for the
/// check of a run.
pub fn answer_plainly(rows: &[QueryRows]) -> QueryAnswer {
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    let mut authors: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut top = usize::MAX;
    for rank in rows {
        match rank {
            QueryRows::Views(rows) => {
                rows.iter().for_each(|row| *sums.entry(row.key).or_default() += row.sum);
            }
            QueryRows::Edits(rows) => {
                top = TOP_ADDRESSES;
                rows.iter().for_each(|&row| *sums.entry(u64::from(row)).or_default() += 1);
            }
            QueryRows::Repositories { commits, .. } => {
                top = TOP_PAIRS;
                for row in commits {
                    let of = authors.entry(row.repository).or_default();
                    if !of.contains(&row.of) {
                        of.push(row.of);
                    }
                }
            }
        }
    }
    for rank in rows {
        let QueryRows::Repositories { languages, .. } = rank else { continue };
        for row in languages {
            for &author in authors.get(&row.repository).into_iter().flatten() {
                *sums.entry(pair_key(row.of, author)).or_default() += row.count;
            }
        }
    }
    let rows = sums.into_iter().map(|(key, sum)| SumRow { key, sum }).collect();
    if top == usize::MAX { rows } else { best(rows, top) }
}
