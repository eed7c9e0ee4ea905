//! Sets of hosts as bits.

/// A set of hosts below a fixed number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostSet(Vec<u64>);

impl HostSet {
    /// The empty set of hosts below `hosts`.
    pub fn new(hosts: usize) -> Self {
        Self(vec![0; hosts.div_ceil(64)])
    }

    /// Hosts for which the set has room, rounded up to a whole word.
    pub fn capacity(&self) -> usize {
        self.0.len() * 64
    }

    /// Adds a host.
    pub fn insert(&mut self, host: usize) {
        self.0[host / 64] |= 1 << (host % 64);
    }

    /// Removes a host.
    pub fn remove(&mut self, host: usize) {
        self.0[host / 64] &= !(1 << (host % 64));
    }

    /// Whether the set has this host.
    #[inline]
    pub fn contains(&self, host: usize) -> bool {
        self.0[host / 64] >> (host % 64) & 1 == 1
    }

    /// Number of hosts in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Number of hosts that are in this set and not in the other.
    pub fn len_without(&self, other: &Self) -> usize {
        self.0.iter().zip(&other.0).map(|(a, b)| (a & !b).count_ones() as usize).sum()
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    /// The hosts of this set that the other set lacks, ascending.
    pub fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        self.0.iter().zip(&other.0).enumerate().flat_map(|(word, (a, b))| {
            let mut bits = a & !b;
            core::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                (bits != 0).then(|| {
                    bits &= bits - 1;
                    word * 64 + bit as usize
                })
            })
        })
    }
}
