//! Local search over the inner places alone. The leaves are matched to them as well as possible.
//!
//! Once all inner places are filled, giving them leaves within a target is a matching, which can be
//! solved. The search therefore exchanges only inner hosts, and lowers the number of leaves that
//! are missing in the largest matching. An exchange changes few proxies. Their leaves that are
//! still in time stay, and augmenting paths from the last matching fill the missing places. When no
//! leaf is missing, there is a tree within the target, and the target goes down.

use evenfall_core::Prng;

use crate::paths::{Length, Lengths};
use crate::tree::{PlacedTree, TreeShape};

/// First and last step by which the target goes down, as shares.
const STEPS: (f64, f64) = (0.02, 0.000_5);
/// Exchanges per inner place without a tree, after which the step is halved.
const PATIENCE: u64 = 60;
/// Mean number of missing leaves that an accepted exchange may add.
const HEAT: f64 = 0.3;
/// No proxy.
const FREE: u16 = u16::MAX;

/// The state that an exchange changes, kept together so that it can be restored.
#[derive(Clone)]
struct State {
    /// Hosts of the inner places.
    inner: Vec<usize>,
    ways: Vec<Length>,
    /// For each proxy of the last level: the set of hosts that it reaches in time.
    reach: Vec<u64>,
    /// By host: the last proxy whose leaf it is.
    owner: Vec<u16>,
    /// For each proxy of the last level: number of its leaves.
    count: Vec<u16>,
    /// Hosts on inner places, and leaves that have a proxy.
    taken: Vec<u64>,
    owned: Vec<u64>,
    missing: usize,
}

impl State {
    fn copy_from(&mut self, other: &Self) {
        self.inner.copy_from_slice(&other.inner);
        self.ways.copy_from_slice(&other.ways);
        self.reach.copy_from_slice(&other.reach);
        self.owner.copy_from_slice(&other.owner);
        self.count.copy_from_slice(&other.count);
        self.taken.copy_from_slice(&other.taken);
        self.owned.copy_from_slice(&other.owned);
        self.missing = other.missing;
    }
}

/// A search. See the module documentation.
pub(super) struct Refine<'a> {
    lengths: &'a Lengths,
    shape: TreeShape,
    root_fixed: bool,
    words: usize,
    target: f64,
    state: State,
    before: State,
    seen: Vec<bool>,
    /// Number of edges read, the measure of work.
    work: u64,
}

fn bit(host: usize) -> (usize, u64) {
    (host / 64, 1 << (host % 64))
}

impl<'a> Refine<'a> {
    /// Begins at a tree of depth 2 at least.
    pub fn new(lengths: &'a Lengths, tree: &PlacedTree, root_fixed: bool) -> Self {
        let (shape, hosts) = (tree.shape(), lengths.hosts());
        let words = hosts.div_ceil(64);
        let proxies = shape.width(shape.depth - 1);
        let mut taken = vec![u64::MAX; words];
        let inner = tree.hosts()[..shape.inner()].to_vec();
        for host in (0..hosts).filter(|host| !inner.contains(host)) {
            taken[bit(host).0] &= !bit(host).1;
        }
        let state = State {
            ways: lengths.ways(shape, &inner),
            inner,
            reach: vec![0; proxies * words],
            owner: vec![FREE; hosts],
            count: vec![0; proxies],
            taken,
            owned: vec![0; words],
            missing: proxies * shape.fanout as usize,
        };
        let seen = vec![false; proxies];
        let (target, work) = (f64::INFINITY, 0);
        let before = state.clone();
        Self { lengths, shape, root_fixed, words, target, state, before, seen, work }
    }

    /// Searches until this many edges were read. Replaces `best` when it finds a better tree.
    pub fn run(&mut self, work: u64, best: &mut (f64, PlacedTree), prng: &mut Prng) {
        let patience = PATIENCE * self.state.inner.len() as u64;
        let (mut step, mut tries, mut kept) = (STEPS.0, 0, None);
        self.aim(best.0 * (1.0 - step));
        while self.work < work && step > STEPS.1 {
            if self.state.missing == 0 {
                let (us, tree) = self.tree();
                if us < best.0 {
                    *best = (us, tree);
                }
                kept = Some(self.state.clone());
                tries = 0;
                self.aim(best.0 * (1.0 - step));
                continue;
            }
            tries += 1;
            if tries > patience {
                (step, tries) = (step / 2.0, 0);
                if let Some(kept) = &kept {
                    self.state.copy_from(kept);
                }
                self.aim(best.0 * (1.0 - step));
                continue;
            }
            self.exchange(prng);
        }
    }

    fn tree(&self) -> (f64, PlacedTree) {
        let mut hosts = self.state.inner.clone();
        for proxy in 0..self.state.count.len() {
            let mine = |leaf: &usize| usize::from(self.state.owner[*leaf]) == proxy;
            hosts.extend((0..self.lengths.hosts()).filter(mine));
        }
        let tree = PlacedTree::new(self.shape, hosts);
        (self.lengths.worst_leaf(&tree).1, tree)
    }

    fn first_proxy(&self) -> usize {
        self.shape.inner() - self.state.count.len()
    }

    /// Sets another target, and computes the hosts that every proxy reaches within it.
    fn aim(&mut self, target: f64) {
        self.target = target;
        for proxy in 0..self.state.count.len() {
            self.look(proxy);
        }
        self.mend();
    }

    /// Computes the hosts that a proxy reaches in time. Leaves that it no longer reaches become
    /// free.
    fn look(&mut self, proxy: usize) {
        let place = self.first_proxy() + proxy;
        let (way, from) = (self.state.ways[place], self.state.inner[place]);
        let reach = &mut self.state.reach[proxy * self.words..(proxy + 1) * self.words];
        reach.fill(0);
        self.work += self.lengths.hosts() as u64;
        for host in 0..self.lengths.hosts() {
            let in_time = way.plus(self.lengths.edge(from, host)).us() <= self.target;
            reach[host / 64] |= u64::from(in_time) << (host % 64);
        }
        for word in 0..self.words {
            let in_time = self.state.reach[proxy * self.words + word];
            let mut lost = self.state.owned[word] & !in_time;
            while lost != 0 {
                let leaf = word * 64 + lost.trailing_zeros() as usize;
                lost &= lost - 1;
                if usize::from(self.state.owner[leaf]) == proxy {
                    give_back(&mut self.state, leaf);
                }
            }
        }
    }

    /// Finds leaves for all proxies that have too few.
    fn mend(&mut self) {
        let needed = self.shape.fanout;
        for proxy in 0..self.state.count.len() {
            while self.state.count[proxy] < needed {
                self.seen.fill(false);
                if !self.augment(proxy) {
                    break;
                }
                self.state.count[proxy] += 1;
                self.state.missing -= 1;
            }
        }
    }

    fn augment(&mut self, proxy: usize) -> bool {
        self.seen[proxy] = true;
        let base = proxy * self.words;
        let open = |state: &State, word: usize| state.reach[base + word] & !state.taken[word];
        for word in 0..self.words {
            let free = open(&self.state, word) & !self.state.owned[word];
            if free != 0 {
                let leaf = word * 64 + free.trailing_zeros() as usize;
                self.state.owned[word] |= 1 << (leaf % 64);
                self.state.owner[leaf] = proxy as u16;
                return true;
            }
        }
        for word in 0..self.words {
            let mut bits = open(&self.state, word);
            while bits != 0 {
                let leaf = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let owner = usize::from(self.state.owner[leaf]);
                if !self.seen[owner] && self.augment(owner) {
                    self.state.owner[leaf] = proxy as u16;
                    return true;
                }
            }
        }
        false
    }

    /// Draws an inner place to change, most often a place above missing leaves.
    fn place(&self, prng: &mut Prng) -> usize {
        let needed = self.shape.fanout;
        let proxies = self.state.count.len() as u64;
        let mut proxy = prng.below(proxies) as usize;
        if prng.below(4) > 0 {
            let lacks = |proxy: &usize| self.state.count[*proxy] < needed;
            let mut lacking = (proxy..self.state.count.len()).chain(0..proxy);
            proxy = lacking.find(lacks).unwrap_or(proxy);
        }
        let mut place = self.first_proxy() + proxy;
        let top = usize::from(self.root_fixed);
        while prng.below(4) == 0 {
            match self.shape.parent(place) {
                Some(parent) if parent >= top => place = parent,
                _ => break,
            }
        }
        place
    }

    fn exchange(&mut self, prng: &mut Prng) {
        let place = self.place(prng);
        let top = usize::from(self.root_fixed);
        let host = prng.below(self.lengths.hosts() as u64) as usize;
        let other = self.state.inner.iter().position(|&inner| inner == host);
        if other.is_some_and(|other| other == place || other < top) {
            return;
        }
        self.before.copy_from(&self.state);
        let missing = self.state.missing;
        match other {
            Some(other) => self.state.inner.swap(place, other),
            None => {
                let old = core::mem::replace(&mut self.state.inner[place], host);
                if self.state.owner[host] != FREE {
                    give_back(&mut self.state, host);
                }
                self.state.taken[bit(host).0] |= bit(host).1;
                self.state.taken[bit(old).0] &= !bit(old).1;
            }
        }
        let timely = self.renew(place) && other.is_none_or(|other| self.renew(other));
        if timely {
            self.mend();
        }
        let added = self.state.missing as f64 - missing as f64;
        if !timely || (added > 0.0 && added > prng.exponential(HEAT)) {
            core::mem::swap(&mut self.state, &mut self.before);
        }
    }

    /// Computes the ways to a place and all places below, and the hosts that proxies among them
    /// reach. Returns false when a way is so late that no leaf can be in time.
    fn renew(&mut self, top: usize) -> bool {
        let fanout = self.shape.fanout as usize;
        let (mut from, mut to) = (top, top + 1);
        while from < self.state.inner.len() {
            for place in from..to {
                if let Some(parent) = self.shape.parent(place) {
                    let edge = self.lengths.edge(self.state.inner[parent], self.state.inner[place]);
                    self.state.ways[place] = self.state.ways[parent].plus(edge);
                    if self.state.ways[place].us() >= self.target {
                        return false;
                    }
                }
                if place >= self.first_proxy() {
                    self.look(place - self.first_proxy());
                }
            }
            (from, to) = (from * fanout + 1, to * fanout + 1);
        }
        true
    }
}

fn give_back(state: &mut State, leaf: usize) {
    let proxy = usize::from(state.owner[leaf]);
    state.owner[leaf] = FREE;
    state.owned[bit(leaf).0] &= !bit(leaf).1;
    state.count[proxy] -= 1;
    state.missing += 1;
}
