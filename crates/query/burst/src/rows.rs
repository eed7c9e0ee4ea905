//! Rows for the three queries, made of a seed. The data of the source are not available, so the
//! sizes and the skew are stated here.
//!
//! A name out of `n` is drawn as `n * u^skew`, with `u` between 0 and 1: with a skew of 3 and a
//! thousand names, the first name has a tenth of all draws, and the first ten names have more than
//! a fifth.

use evenfall_core::Prng;

use crate::query::{QueryRows, RepositoryRow, SumRow};

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
