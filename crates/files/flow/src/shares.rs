//! The max-min share of each flow on one link: no flow gains by taking from a flow that has less.
//!
//! The thesis (3.2.2) divides a link equally among its flows, up to what each flow asks for. An
//! existing flow asks for its present share, which already respects its bottleneck on another link.
//! A new flow asks for the whole link.

/// The share of a new flow that asks for all of a link: x with `sum(min(share, x)) + x = capacity`.
///
/// The first guess is an equal share for each flow. Flows that ask for less than the guess leave
/// bandwidth to the others, so the next guess is higher. The guess is exact once no further flow
/// asks for less.
pub(crate) fn newcomer(capacity: f64, shares: impl Iterator<Item = f64> + Clone) -> f64 {
    level(capacity, 1, shares)
}

/// The share to which larger existing flows are cut so that all fit into `capacity`:
/// `sum(min(share, level)) = capacity`. Infinite when all flows fit uncut.
pub(crate) fn cut(capacity: f64, shares: impl Iterator<Item = f64> + Clone) -> f64 {
    if shares.clone().sum::<f64>() <= capacity {
        return f64::INFINITY;
    }
    level(capacity, 0, shares)
}

/// Solves `sum(min(share, x)) + greedy * x = capacity` for x, in bytes a second.
fn level(capacity: f64, greedy: usize, shares: impl Iterator<Item = f64> + Clone) -> f64 {
    let all = shares.clone().count() + greedy;
    let mut level = capacity / all as f64;
    let mut modest = 0;
    loop {
        let (mut count, mut sum) = (0, 0.0);
        for share in shares.clone() {
            if share <= level {
                count += 1;
                sum += share;
            }
        }
        // Rounding may remove a flow that asks for exactly the level from the count again, so the
        // loop also ends when the count falls.
        if count <= modest || count == all {
            return level;
        }
        modest = count;
        level = (capacity - sum) / (all - count) as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_gets_what_modest_flows_leave() {
        let shares = |values: &'static [f64]| values.iter().copied();
        assert_eq!(newcomer(10.0, shares(&[])), 10.0);
        assert_eq!(newcomer(10.0, shares(&[10.0])), 5.0);
        assert_eq!(newcomer(10.0, shares(&[2.0, 2.0, 6.0])), 3.0);
        assert_eq!(newcomer(10.0, shares(&[1.0, 1.0, 1.0])), 7.0);
    }

    #[test]
    fn estimates_above_the_capacity_still_leave_a_share() {
        assert_eq!(newcomer(10.0, [8.0, 8.0].into_iter()), 10.0 / 3.0);
        assert_eq!(cut(10.0, [8.0, 8.0].into_iter()), 5.0);
    }

    #[test]
    fn nobody_is_cut_where_there_is_enough() {
        assert_eq!(cut(10.0, [4.0, 6.0].into_iter()), f64::INFINITY);
        assert_eq!(cut(7.0, [2.0, 2.0, 6.0].into_iter()), 3.0);
    }
}
