//! The levels at which an append is acknowledged. The engine, the protocol, the server, the help
//! texts and the bench ask this table, so that a new level is a line of the table and a row in
//! `docs/wire/store.md`.
//!
//! A level that waits for something new also gets a [`Wait`], which the engine awaits beside the
//! others (`engine.rs`); the functions that wait are in `engine/replication.rs` and
//! `engine/disk.rs`. The campaign in `lab/src/store.rs` has a check for each promise, so a level
//! with a new promise also needs a new check there.

use std::fmt::{self, Display, Formatter};

/// What an append waits for before the append is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// The journal of this node is synced with the records.
    Commit,
    /// The journal of the second node is synced with all records that this node has synced.
    Copy,
    /// The object store has all records of the file, and the metadata there names them.
    Objects,
}

impl Wait {
    /// Whether a node that has no second node waits in vain.
    pub fn needs_second_node(self) -> bool {
        match self {
            Self::Copy => true,
            Self::Commit | Self::Objects => false,
        }
    }
}

macro_rules! levels {
    ($($name:ident: $word:literal, $number:literal, [$($wait:ident)*], $place:literal;)*) => {
        /// Where the records of an append are when the append is acknowledged.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Level {
            $(#[doc = concat!("The records are ", $place, ".")] $name,)*
        }

        impl Level {
            /// All levels, in the order of help texts.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            fn row(self) -> (&'static str, u8, &'static [Wait], &'static str) {
                match self {
                    $(Self::$name => ($word, $number, &[$(Wait::$wait),*], $place),)*
                }
            }
        }
    };
}

// Name, word, number on the wire, waits in order, place for help texts. Numbers never change.
levels! {
    Memory: "memory", 0, [], "in memory, and on the disk half a second later";
    Local: "local", 1, [Commit], "synced on this disk";
    Replica: "replica", 3, [Commit Copy], "synced on this disk and on that of a second node";
    Object: "object", 2, [Objects], "in the object store";
}

impl Level {
    /// The level of this number on the wire.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|level| level.number() == number)
    }

    /// The level's number on the wire.
    pub fn number(self) -> u8 {
        self.row().1
    }

    /// What an append at the level waits for, in this order.
    pub fn waits(self) -> &'static [Wait] {
        self.row().2
    }

    /// Whether appends at the level are refused where there is no second node.
    pub fn needs_second_node(self) -> bool {
        self.waits().iter().any(|wait| wait.needs_second_node())
    }

    /// All levels with their places, for help texts and errors.
    pub fn list() -> String {
        let of = |level: &Self| format!("{level} ({})", level.row().3);
        Self::ALL.iter().map(of).collect::<Vec<_>>().join(", ")
    }
}

impl Display for Level {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().0)
    }
}

impl std::str::FromStr for Level {
    type Err = LevelError;

    fn from_str(word: &str) -> Result<Self, LevelError> {
        let known = Self::ALL.iter().copied().find(|level| level.row().0 == word);
        known.ok_or_else(|| LevelError(word.to_owned()))
    }
}

/// A word that names no [`Level`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelError(pub String);

impl Display for LevelError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no level: {}", self.0, Level::list())
    }
}

impl std::error::Error for LevelError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_back_from_words_and_numbers_and_keep_their_numbers() {
        for &level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(Level::of_number(level.number()), Some(level));
        }
        let released = [Level::Memory, Level::Local, Level::Object, Level::Replica];
        assert_eq!(released.map(Level::number), [0, 1, 2, 3]);
    }
}
