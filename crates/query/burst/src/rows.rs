//! Rows for the three queries and records for a sort, made of a seed. The data of the source are
//! not available, so the sizes and the skew are stated here.
//!
//! A name out of `n` is drawn as `n * u^skew`, with `u` between 0 and 1: with a skew of 3 and a
//! thousand names, the first name has a tenth of all draws, and the first ten names have more than
//! a fifth.

use core::str::FromStr;
use std::sync::Arc;

use evenfall_core::Prng;

use crate::pivots::{KEY_BYTES, Naive, SplitterRule, Weighted};
use crate::query::{Duplicates, QueryRows, RepositoryRow, SumRow};
use crate::sort::{SortRecords, VALUE_BYTES};

/// A name that is not one of the allowed names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {allowed}")]
pub struct UnknownName {
    /// The allowed names.
    pub allowed: &'static str,
}

/// Languages of q1.
const LANGUAGES: u32 = 300;
/// Languages of q3.
const CODE_LANGUAGES: u32 = 200;
/// Addresses of q2 for each row of a rank; a rank sees some of them again at other ranks.
const ADDRESSES: u32 = 1_000_000;
/// Rows of q3 for each repository: eight commits and two languages.
const REPOSITORY_ROWS: u32 = 10;
/// Exponent of all draws.
const SKEW: u32 = 3;

/// One of the three queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryName {
    /// Sum of views by language.
    Q1,
    /// Ten addresses with most edits.
    Q2,
    /// Hundred pairs of language and author with most bytes.
    Q3,
}

impl FromStr for QueryName {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "q1" => Ok(Self::Q1),
            "q2" => Ok(Self::Q2),
            "q3" => Ok(Self::Q3),
            _ => Err(UnknownName { allowed: "q1, q2 and q3" }),
        }
    }
}

impl FromStr for Duplicates {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "before" => Ok(Self::OutBefore),
            "after" => Ok(Self::OutAfter),
            _ => Err(UnknownName { allowed: "before and after" }),
        }
    }
}

fn skewed(prng: &mut Prng, names: u32) -> u32 {
    let u = prng.unit();
    let share = (1..SKEW).fold(u, |share, _| share * u);
    ((share * f64::from(names)) as u32).min(names.saturating_sub(1))
}

/// The rows of one rank: `count` rows, of `count * ranks` in all.
pub fn make(query: QueryName, seed: u64, rank: usize, ranks: usize, count: usize) -> QueryRows {
    let mut prng = Prng::new(seed).fork(rank as u64);
    match query {
        QueryName::Q1 => {
            let row =
                |_| SumRow { key: u64::from(skewed(&mut prng, LANGUAGES)), sum: prng.below(1_000) };
            QueryRows::Views((0..count).map(row).collect())
        }
        QueryName::Q2 => {
            QueryRows::Edits((0..count).map(|_| skewed(&mut prng, ADDRESSES)).collect())
        }
        QueryName::Q3 => {
            let all = (count * ranks).min(u32::MAX as usize) as u32;
            let repositories = (all / REPOSITORY_ROWS).max(1);
            let (mut commits, mut languages) = (Vec::new(), Vec::new());
            for at in 0..count {
                // Hot repositories have many authors and few languages more, because the join of
                // both grows with their product.
                let repository = (prng.unit() * f64::from(repositories)) as u32;
                if (at as u32 % REPOSITORY_ROWS) < REPOSITORY_ROWS * 8 / 10 {
                    let of = skewed(&mut prng, (repositories / 4).max(1));
                    commits.push(RepositoryRow { repository, of, count: 1 });
                } else {
                    let of = skewed(&mut prng, CODE_LANGUAGES);
                    let count = 1 + prng.below(100_000);
                    languages.push(RepositoryRow { repository, of, count });
                }
            }
            QueryRows::Repositories { commits, languages }
        }
    }
}

/// How the keys of generated records are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyDraw {
    /// Any key is as likely as any other.
    #[default]
    Uniform,
    /// The first 8 bytes are the mean of twelve uniform numbers, which is near a normal
    /// distribution.
    Gaussian,
    /// A hundred different keys.
    Few,
    /// One key.
    Equal,
}

/// Different keys of [`KeyDraw::Few`].
const FEW_KEYS: u64 = 100;
/// Uniform numbers whose mean is one number of [`KeyDraw::Gaussian`].
const GAUSSIAN_TERMS: u64 = 12;

impl FromStr for KeyDraw {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "uniform" => Ok(Self::Uniform),
            "gaussian" => Ok(Self::Gaussian),
            "few" => Ok(Self::Few),
            "equal" => Ok(Self::Equal),
            _ => Err(UnknownName { allowed: "uniform, gaussian, few and equal" }),
        }
    }
}

/// The rule of splitters with this name.
///
/// # Errors
/// The names that there are.
pub fn find_rule(name: &str) -> Result<Arc<dyn SplitterRule>, UnknownName> {
    match name {
        "weighted" => Ok(Arc::new(Weighted)),
        "naive" => Ok(Arc::new(Naive)),
        _ => Err(UnknownName { allowed: "weighted and naive" }),
    }
}

impl KeyDraw {
    /// The first 8 bytes of a key, as a big-endian number.
    pub fn draw_prefix(self, prng: &mut Prng) -> u64 {
        match self {
            Self::Uniform => prng.next_u64(),
            Self::Gaussian => (0..GAUSSIAN_TERMS).map(|_| prng.next_u64() / GAUSSIAN_TERMS).sum(),
            Self::Few => prng.below(FEW_KEYS),
            Self::Equal => 0,
        }
    }

    fn draw_key(self, prng: &mut Prng) -> [u8; KEY_BYTES] {
        let prefix = self.draw_prefix(prng).to_be_bytes();
        let rest = match self {
            Self::Uniform | Self::Gaussian => prng.next_u64().to_be_bytes(),
            Self::Few | Self::Equal => [0; 8],
        };
        core::array::from_fn(|at| prefix.get(at).copied().unwrap_or(rest[at % rest.len()]))
    }
}

/// The records of one rank. Each value begins with its number ([`record_number`]), so that a check
/// can see whether a sort was stable.
pub fn make_records(keys: KeyDraw, seed: u64, rank: usize, count: usize) -> SortRecords {
    let mut prng = Prng::new(seed).fork(rank as u64);
    let mut key_block = Vec::with_capacity(count * KEY_BYTES);
    let mut values = vec![0; count * VALUE_BYTES];
    for (index, value) in values.as_chunks_mut::<VALUE_BYTES>().0.iter_mut().enumerate() {
        key_block.extend_from_slice(&keys.draw_key(&mut prng));
        let number = (rank as u64) << 32 | index as u64;
        value[..8].copy_from_slice(&number.to_be_bytes());
        value[8..].fill(index as u8);
    }
    SortRecords { keys: key_block.into(), values: values.into() }
}

/// The number of a generated record by its value: its rank in the upper half, and its place there.
/// 0 where the value is shorter than 8 bytes.
pub fn record_number(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
