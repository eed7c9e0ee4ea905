//! What the ranks of a burst tell each other beside their work: the options that they were started
//! with, and what has failed at one of them.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use evenfall_collectives_member::GroupMember;

type Failure = Box<dyn std::error::Error>;

/// What has failed at a rank, as all ranks know it. The words name the rank.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RankFailed(pub String);

/// Ends the command at every rank, with the same words, when something has failed at one of them.
/// All ranks make this call.
pub fn expect_at_all<T>(
    mut member: GroupMember,
    own: Result<T, String>,
) -> Result<(GroupMember, T), Failure> {
    let (text, own) = match own {
        Ok(own) => (String::new(), Some(own)),
        Err(why) => (why, None),
    };
    let all = member.all_gather(Bytes::from(text))?;
    let failed = all.iter().position(|text| !text.is_empty());
    match (failed, own) {
        (None, Some(own)) => Ok((member, own)),
        (failed, _) => {
            let rank = failed.unwrap_or_default();
            let why = String::from_utf8_lossy(&all[rank]).into_owned();
            Err(part_from(member, RankFailed(format!("rank {rank}: {why}"))))
        }
    }
}

/// Leaves the group when the other ranks have what they need to end with the same words. Returns
/// the error that says them.
fn part_from(member: GroupMember, failed: RankFailed) -> Failure {
    member.leave_within(Duration::ZERO);
    failed.into()
}

/// The options that must be the same at every rank, as one would write them.
pub struct StatedOptions(Vec<String>);

impl StatedOptions {
    /// The options of this command.
    pub fn of(command: &str) -> Self {
        Self(vec![format!("evenfall {} {command}", env!("CARGO_PKG_VERSION"))])
    }

    /// With a further option. All ranks state the same options in the same order.
    #[must_use]
    pub fn state(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.0.push(format!("--{name} {value}"));
        self
    }

    /// With an option that has no value, or whose value each rank chooses.
    #[must_use]
    pub fn state_given(mut self, name: &str, is_given: bool) -> Self {
        self.0.push(if is_given { format!("--{name}") } else { format!("no --{name}") });
        self
    }

    /// The first option that differs between two ranks, as each of them has it.
    fn difference<'a>(&'a self, other: &'a Self) -> Option<(&'a str, &'a str)> {
        let all = self.0.len().max(other.0.len());
        let at = |options: &'a Self, place: usize| options.0.get(place).map_or("", String::as_str);
        (0..all).map(|place| (at(self, place), at(other, place))).find(|(own, other)| own != other)
    }
}

/// Ends the command at every rank, with the same words, when two ranks were started with different
/// options. All ranks make this call first.
pub fn expect_same_options(
    mut member: GroupMember,
    own: &StatedOptions,
) -> Result<GroupMember, Failure> {
    let all = member.all_gather(Bytes::from(serde_json::to_vec(&own.0)?))?;
    let first = read_options(&all[0]);
    for (rank, body) in all.iter().enumerate().skip(1) {
        let options = read_options(body);
        if let Some((here, there)) = options.difference(&first) {
            let words = format!(
                "rank {rank} has {here:?} where rank 0 has {there:?}: start every rank with the \
                 same options"
            );
            return Err(part_from(member, RankFailed(words)));
        }
    }
    Ok(member)
}

/// The options of a rank; none where another version of the program states them in another way.
fn read_options(body: &[u8]) -> StatedOptions {
    StatedOptions(serde_json::from_slice(body).unwrap_or_default())
}
