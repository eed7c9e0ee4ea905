//! UTC for the whole mesh, out of sources that are not believed alone.
//!
//! The mesh shares one time, which is that of its reference. Some nodes have a source of UTC beside
//! it: the kernel's discipline, chrony, a hardware clock, ClockBound. Each states its own bound,
//! and each can be wrong: a cloud's hardware clock has been seen 50 ms off. The mesh knows the
//! difference of any two nodes to a microsecond, so that all sources can be laid side by side as
//! intervals on one time. The interval that most sources share is UTC (Marzullo, 1984). A source
//! whose interval does not touch the shared interval has left its own bound. The source is named
//! and dropped until its interval touches the shared interval again.

use crate::wire::Claim;

/// The claim of one node's source about UTC, against the time of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The node.
    pub node: u32,
    /// UTC less the time of the mesh; the bound is the source's own plus that of the node's clock.
    pub claim: Claim,
}

/// The UTC on which the sources agree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Utc {
    /// UTC less the time of the mesh; `None` when no more than half of the sources agree.
    pub claim: Option<Claim>,
    /// Nodes whose source has left its own bound.
    pub dropped: Vec<u32>,
}

/// Lays all sources side by side.
pub fn vet(witnesses: &[Witness]) -> Utc {
    // Beginnings sort before ends at one place, so that intervals that touch agree.
    let mut ends: Vec<(i128, bool)> = Vec::with_capacity(2 * witnesses.len());
    for witness in witnesses {
        let [low, high] = interval(&witness.claim);
        ends.extend([(low, false), (high, true)]);
    }
    ends.sort_unstable();
    let (mut inside, mut most) = (0usize, 0);
    let mut shared = None;
    for (k, &(at, is_end)) in ends.iter().enumerate() {
        if is_end {
            inside -= 1;
            continue;
        }
        inside += 1;
        if inside > most {
            // The next entry is the end of the overlap: a beginning would only narrow it further.
            most = inside;
            shared = ends[k + 1..].iter().find(|end| end.1).map(|end| [at, end.0]);
        }
    }
    // When two sources differ, nobody can tell which of them is right.
    let Some([low, high]) = shared.filter(|_| 2 * most > witnesses.len()) else {
        return Utc::default();
    };
    let outside = |witness: &&Witness| {
        let [from, to] = interval(&witness.claim);
        to < low || high < from
    };
    let middle = (low + high).div_euclid(2);
    let claim = Claim {
        offset_ns: middle.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
        bound_ns: u64::try_from(high - middle).unwrap_or(u64::MAX),
    };
    let dropped = witnesses.iter().filter(outside).map(|witness| witness.node).collect();
    Utc { claim: Some(claim), dropped }
}

fn interval(claim: &Claim) -> [i128; 2] {
    let (offset, bound) = (i128::from(claim.offset_ns), i128::from(claim.bound_ns));
    [offset - bound, offset + bound]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn witnesses(claims: &[(i64, u64)]) -> Vec<Witness> {
        let witness = |(node, &(offset_ns, bound_ns)): (usize, &(i64, u64))| Witness {
            node: node as u32,
            claim: Claim { offset_ns, bound_ns },
        };
        claims.iter().enumerate().map(witness).collect()
    }

    #[test]
    fn sources_that_agree_narrow_each_other() {
        let utc = vet(&witnesses(&[(100, 50), (130, 40), (90, 30)]));
        assert_eq!(utc.claim, Some(Claim { offset_ns: 105, bound_ns: 15 }));
        assert!(utc.dropped.is_empty());
    }

    #[test]
    fn a_source_that_leaves_its_own_bound_is_named_and_dropped() {
        let utc = vet(&witnesses(&[(0, 1_000), (50_000_000, 20), (300, 900), (-200, 900)]));
        assert_eq!(utc.dropped, [1]);
        let claim = utc.claim.expect("three agree");
        assert_eq!((claim.offset_ns, claim.bound_ns), (50, 650));
    }

    #[test]
    fn two_that_differ_and_none_at_all_say_nothing() {
        assert_eq!(vet(&witnesses(&[(0, 10), (100, 10)])), Utc::default());
        assert_eq!(vet(&[]), Utc::default());
        let one = vet(&witnesses(&[(7, u64::MAX - 1)]));
        assert_eq!(one.claim.map(|claim| claim.offset_ns), Some(7));
    }
}
