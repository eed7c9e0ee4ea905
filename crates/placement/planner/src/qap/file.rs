//! Instances and solutions in QAPLIB's text form.
//!
//! ```text
//!  .dat   n                      .sln   n cost
//!         n x n cells of A              permutation, from 1
//!         n x n cells of B
//! ```
//!
//! Line breaks between numbers have no meaning, because existing files wrap their rows anywhere.
//! Commas count as blanks, because some solutions have commas. Any bytes give a value or an error
//! with its line, and the memory is bounded by the length of the text.
//!
//! Source: R. E. Burkard, S. E. Karisch, F. Rendl, "QAPLIB, a quadratic assignment problem
//! library" (1997), section 2.

use super::{CELL_MAX, Instance, InstanceError, SIZE_MAX, inverse};

/// Bytes of a word that an error repeats.
const SHOWN_MAX: usize = 24;

/// Why a text is no instance or solution. Lines count from 1.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The text ends too early.
    #[error("the text ends after {found} of {needed} numbers of {wanted}")]
    Ended {
        /// The kind of number that is missing.
        wanted: &'static str,
        /// Numbers that belong there.
        needed: usize,
        /// Numbers found.
        found: usize,
    },
    /// A word is no number of the kind that belongs there.
    #[error("line {line}: {word}: not {wanted}")]
    Word {
        /// Where.
        line: usize,
        /// The word, cut and escaped.
        word: String,
        /// The kind of number that is expected.
        wanted: &'static str,
    },
    /// Numbers behind the last that belongs there.
    #[error("line {line}: more numbers than the size on the first line asks for")]
    Trailing {
        /// Line of the first of these numbers.
        line: usize,
    },
    /// A host of a permutation is named twice.
    #[error("line {line}: {host} is named twice in the permutation")]
    Repeated {
        /// Line of the second mention.
        line: usize,
        /// Number of the host, from 1.
        host: usize,
    },
    /// A solution is for another size.
    #[error("the solution is of size {solution}, the instance of {instance}")]
    OtherSize {
        /// Size of the solution.
        solution: usize,
        /// Size of the instance.
        instance: usize,
    },
}

/// Words of a text with their lines.
struct Words<'a> {
    rest: &'a [u8],
    line: usize,
}

impl<'a> Words<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { rest: text, line: 1 }
    }

    /// The next word; its line is then `self.line`.
    fn next(&mut self) -> Option<&'a [u8]> {
        let blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == b',' || *byte == 0x1a;
        let start = self.rest.iter().position(|byte| !blank(byte)).unwrap_or(self.rest.len());
        self.line += self.rest[..start].iter().filter(|byte| **byte == b'\n').count();
        self.rest = &self.rest[start..];
        let end = self.rest.iter().position(blank).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    /// The next word as a number that `fits`, or what is wrong with it.
    fn number<T: core::str::FromStr>(
        &mut self,
        wanted: &'static str,
        needed: usize,
        found: usize,
        fits: impl Fn(&T) -> bool,
    ) -> Result<T, FileError> {
        let word = self.next().ok_or(FileError::Ended { wanted, needed, found })?;
        let value = core::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
        value.filter(fits).ok_or_else(|| {
            let word = word[..word.len().min(SHOWN_MAX)].escape_ascii().to_string();
            FileError::Word { line: self.line, word, wanted }
        })
    }

    fn end(mut self) -> Result<(), FileError> {
        match self.next() {
            None => Ok(()),
            Some(_) => Err(FileError::Trailing { line: self.line }),
        }
    }
}

const SIZE: &str = "a size of 1 to 10000";

/// Reads a `.dat`.
///
/// # Errors
/// When the text ends early, holds something else than numbers, or too many of them.
pub fn instance(text: &[u8]) -> Result<Instance, FileError> {
    let mut words = Words::new(text);
    let size = words.number(SIZE, 1, 0, |size| (1..=SIZE_MAX).contains(size))?;
    let mut matrix = |wanted: &'static str| {
        let mut cells = Vec::new();
        for found in 0..size * size {
            let fits = |cell: &f64| cell.abs() <= CELL_MAX;
            cells.push(words.number(wanted, size * size, found, fits)?);
        }
        Ok(cells)
    };
    let a = matrix("the first matrix")?;
    let b = matrix("the second matrix")?;
    words.end()?;
    match Instance::new(size, a, b) {
        Ok(instance) => Ok(instance),
        // These errors cannot occur, because the cells were checked above with their lines.
        Err(InstanceError::Size(_) | InstanceError::Cells { .. } | InstanceError::Cell { .. }) => {
            unreachable!("size and cells were read within their limits")
        }
    }
}

/// A published permutation with its stated cost.
#[derive(Clone, PartialEq, Debug)]
pub struct KnownPermutation {
    /// The stated cost.
    pub cost: f64,
    /// From 0.
    pub permutation: Vec<usize>,
}

impl KnownPermutation {
    /// Whether the permutation or its inverse has the stated cost. Published files have either
    /// form.
    ///
    /// # Errors
    /// When the sizes differ.
    pub fn agrees(&self, instance: &Instance) -> Result<bool, FileError> {
        let (solution, instance_size) = (self.permutation.len(), instance.size());
        if solution != instance_size {
            return Err(FileError::OtherSize { solution, instance: instance_size });
        }
        let near = |cost: f64| (cost - self.cost).abs() <= 1e-9 * self.cost.abs();
        Ok(near(instance.cost(&self.permutation))
            || near(instance.cost(&inverse(&self.permutation))))
    }
}

/// Reads a `.sln`.
///
/// # Errors
/// When the text ends early, or holds something else than a size, a cost and a permutation.
pub fn known(text: &[u8]) -> Result<KnownPermutation, FileError> {
    let mut words = Words::new(text);
    let size = words.number(SIZE, 2, 0, |size| (1..=SIZE_MAX).contains(size))?;
    let cost = words.number("a cost", 2, 1, |cost: &f64| cost.is_finite())?;
    let mut permutation = Vec::new();
    // The memory is bounded by the size, which has a limit.
    let mut named = vec![false; size];
    for found in 0..size {
        let host =
            words.number("a permutation, from 1", size, found, |host| (1..=size).contains(host))?;
        if core::mem::replace(&mut named[host - 1], true) {
            return Err(FileError::Repeated { line: words.line, host });
        }
        permutation.push(host - 1);
    }
    words.end()?;
    Ok(KnownPermutation { cost, permutation })
}
