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
//! The source does not say whether pairs are made unique and summed up *before* a shuffle or only
//! behind it. [`Duplicates`] has both: before costs work and saves bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_collectives_machine::group::{Collective, CollectiveOutcome, MergeRule};
use evenfall_core::Malformed;
use evenfall_core::math::mix;

use crate::burst::{Actions, BurstProgram, WorkKind, WorkResult, take_result};

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

const SCAN: u32 = 0;
const JOIN: u32 = 1;
const SUM: u32 = 2;

/// The phases that a query reports.
pub const QUERY_PHASES: [&str; 4] = ["scan", "shuffle", "sum", "reduce"];

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

/// The answer of a query.
pub type Answer = Vec<SumRow>;

/// What a rank has after a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryOutput {
    /// The answer at rank 0, and nothing elsewhere.
    pub answer: Answer,
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
}

/// Tables for each rank: what a shuffle sends.
type Messages = Vec<Bytes>;

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
        }
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
        out.work(JOIN, WorkKind::Join, items, move || {
            let sums = joined(&pairs, &languages);
            by_hash(&one_each(sums, duplicates), ranks)
        });
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

    const STEPS: u32 = 4;

    fn begin(&mut self, out: &mut Actions<QueryOutput>) {
        out.begin_phase("scan");
        let Some(rows) = self.rows.take() else { return };
        let (ranks, duplicates) = (self.ranks.len(), self.duplicates);
        out.work(SCAN, WorkKind::Scan, rows.len(), move || scanned(rows, ranks, duplicates));
    }

    fn here(
        &mut self,
        step: u32,
        outcome: CollectiveOutcome,
        out: &mut Actions<QueryOutput>,
    ) -> Result<(), u16> {
        match (step, outcome) {
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
        let ranks = self.ranks.clone();
        match job {
            SCAN => {
                out.end_phase("scan");
                match take_result::<Scanned>(result) {
                    Scanned::Table(table) => self.reduce(table, out),
                    Scanned::Counts(messages) => {
                        out.begin_phase("shuffle");
                        out.call(SHUFFLE_PAIRS, ranks, Collective::Shuffle { messages });
                    }
                    Scanned::Both { pairs, languages } => {
                        out.begin_phase("shuffle");
                        let shuffle = |messages| Collective::Shuffle { messages };
                        out.call(SHUFFLE_PAIRS, ranks.clone(), shuffle(pairs));
                        out.call(SHUFFLE_LANGUAGES, ranks, shuffle(languages));
                    }
                }
            }
            JOIN => {
                let messages = take_result::<Messages>(result);
                out.call(SHUFFLE_SUMS, ranks, Collective::Shuffle { messages });
            }
            _ => {
                out.end_phase("sum");
                let table = take_result::<Vec<SumRow>>(result);
                self.reduce(table, out);
            }
        }
        Ok(())
    }
}

/// What a rank has after its scan.
#[derive(Debug)]
enum Scanned {
    Table(Vec<SumRow>),
    Counts(Messages),
    Both { pairs: Messages, languages: Messages },
}

fn scanned(rows: QueryRows, ranks: usize, duplicates: Duplicates) -> Scanned {
    match rows {
        QueryRows::Views(rows) => Scanned::Table(summed(rows.into_iter())),
        QueryRows::Edits(addresses) => {
            let row = |address| SumRow { key: u64::from(address), sum: 1 };
            let rows = addresses.into_iter().map(row).collect();
            Scanned::Counts(by_hash(&one_each(rows, duplicates), ranks))
        }
        QueryRows::Repositories { mut commits, languages } => {
            if duplicates == Duplicates::OutBefore {
                commits.sort_unstable();
                commits.dedup();
            }
            let pairs = by_repository(&commits, ranks);
            Scanned::Both { pairs, languages: by_repository(&languages, ranks) }
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

fn by_hash(rows: &[SumRow], ranks: usize) -> Messages {
    let mut messages = vec![BytesMut::new(); ranks];
    for row in rows {
        let message = &mut messages[(mix(row.key) % ranks as u64) as usize];
        message.put_u64_le(row.key);
        message.put_u64_le(row.sum);
    }
    messages.into_iter().map(BytesMut::freeze).collect()
}

/// All rows of a repository go to one rank: repository, author or language, count.
fn by_repository(rows: &[RepositoryRow], ranks: usize) -> Messages {
    let mut messages = vec![BytesMut::new(); ranks];
    for row in rows {
        let message = &mut messages[(mix(u64::from(row.repository)) % ranks as u64) as usize];
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
pub fn answer_plainly(rows: &[QueryRows]) -> Answer {
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
