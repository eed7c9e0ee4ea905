//! The levels at which an append is acknowledged. Commands, help texts, the protocol, the server,
//! the client and the bench ask this table.
//!
//! # Another level
//!
//! A level **of waits that exist** is two lines: one in the table [`StoreAckLevel`] below
//! (`levels!`), with a new number for the wire, and one in the table "What survives what" of
//! `docs/wire/store.md`. A test here compares the two. `evenfall store append --ack WORD` then asks
//! for the level.
//!
//! A level **with a new wait** is these places more:
//!
//! 1. Here, the wait: a variant of [`Wait`], with the answers for which the compiler asks.
//! 2. `engine.rs`, in `Store::reach`, the call that waits; `Store::is_reached` below it says
//!    whether the call would return at once. The function that waits is a method of `StoreEngine`
//!    beside what it waits for. `StoreEngine::await_copy` in `engine/replication.rs` is one to
//!    copy: it waits on a condition variable (`Replication::wait`), and gives up after a stated
//!    time. An error of the wait reaches the client as "the records are taken", so an append that
//!    cannot succeed has to be refused before it begins, as [`Wait::needs_second_node`] does. The
//!    server repeats an append that was refused with a retryable error for a while; an error of the
//!    new wait that must not be repeated stands beside `StoreError::Replica` in
//!    `crates/store/server/src/connection.rs`.
//! 3. `lab/campaigns/src/store.rs`: the campaign's check for the promise, which `OF_WAITS` there
//!    names, and a mutant that breaks it. The campaign runs the formats on simulated disks and
//!    objects, without the engine, and counts the records that each wait has promised by itself.
//!    `lab/tests/campaigns.rs` fails as long as `OF_WAITS` names no check for a wait; it cannot see
//!    whether the check is about the new promise. A promise of a second node is counted in
//!    `lab/campaigns/src/store/second.rs`.
//!
//! No key of the settings names a level: commands have `--ack`, and the recorder uses `local`.
//!
//! **Each wait stands for itself.** A row takes its waits one after the other, and no wait relies
//! on another wait of the row. [`Wait::Copy`], for instance, waits for the commit here by itself:
//! the second node gets committed records only, so that without the commit "the second node has all
//! that is committed" would hold for a record that neither disk has.

use std::fmt::{self, Display, Formatter};

/// What an append waits for before the append is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// The journal of this node is synced with the records.
    Commit,
    /// The journals of this node and of the second node are synced with the records.
    Copy,
    /// The object store has all records of the file, and the metadata there names them.
    Objects,
}

impl Wait {
    /// Whether the wait would never end on a node that has no second node. That node refuses
    /// appends with such a wait.
    pub fn needs_second_node(self) -> bool {
        match self {
            Self::Copy => true,
            Self::Commit | Self::Objects => false,
        }
    }

    /// Whether the wait ends with a commit here. The engine then commits at once; other records
    /// wait up to half a second for company.
    pub(crate) fn hurries_commit(self) -> bool {
        match self {
            Self::Commit | Self::Copy => true,
            Self::Objects => false,
        }
    }

    /// Whether a node that takes over can read the records without asking this node. The append is
    /// then acknowledged only when the directory of names itself says that this node is still the
    /// primary.
    pub(crate) fn is_shared(self) -> bool {
        match self {
            Self::Objects => true,
            Self::Commit | Self::Copy => false,
        }
    }
}

macro_rules! levels {
    ($($name:ident: $word:literal, $number:literal, [$($wait:ident)*], $place:literal;)*) => {
        /// Where the records of an append are when the append is acknowledged.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum StoreAckLevel {
            $(#[doc = concat!("The records are ", $place, ".")] $name,)*
        }

        impl StoreAckLevel {
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
    Replica: "replica", 3, [Copy], "synced on this disk and on that of a second node";
    Object: "object", 2, [Objects], "in the object store";
}

impl StoreAckLevel {
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

    /// Whether the answer to a question is yes for one of the waits of the level.
    pub(crate) fn any(self, asks: fn(Wait) -> bool) -> bool {
        self.waits().iter().any(|wait| asks(*wait))
    }

    /// All levels with their places, for help texts and errors.
    pub fn list() -> String {
        let of = |level: &Self| format!("{level} ({})", level.row().3);
        Self::ALL.iter().map(of).collect::<Vec<_>>().join(", ")
    }
}

impl Display for StoreAckLevel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().0)
    }
}

impl std::str::FromStr for StoreAckLevel {
    type Err = LevelError;

    fn from_str(word: &str) -> Result<Self, LevelError> {
        let known = Self::ALL.iter().copied().find(|level| level.row().0 == word);
        known.ok_or_else(|| LevelError(word.to_owned()))
    }
}

/// A word that names no [`StoreAckLevel`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelError(pub String);

impl Display for LevelError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no level: {}", self.0, StoreAckLevel::list())
    }
}

impl std::error::Error for LevelError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_back_from_words_and_numbers_and_keep_their_numbers() {
        for &level in StoreAckLevel::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert_eq!(StoreAckLevel::of_number(level.number()), Some(level));
        }
        let released = [
            StoreAckLevel::Memory,
            StoreAckLevel::Local,
            StoreAckLevel::Object,
            StoreAckLevel::Replica,
        ];
        assert_eq!(released.map(StoreAckLevel::number), [0, 1, 2, 3]);
    }

    #[test]
    fn the_page_of_the_wire_says_what_loses_the_records_of_each_level() {
        let page = include_str!("../../../../docs/wire/store.md");
        let (_, table) = page.split_once("| level | number |").expect("the table of the levels");
        let rows: Vec<&str> = table.lines().skip(2).take_while(|l| l.starts_with('|')).collect();
        for level in StoreAckLevel::ALL {
            let row = format!("| `{level}` | {} |", level.number());
            assert!(rows.iter().any(|one| one.starts_with(&row)), "docs/wire/store.md lacks {row}");
        }
        assert_eq!(rows.len(), StoreAckLevel::ALL.len(), "docs/wire/store.md has another level");
    }
}
