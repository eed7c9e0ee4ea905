//! One timer per node, in an indexed heap: re-arming leaves no garbage behind.
//!
//! A machine renames its next timeout after most inputs. Were each an event, a machine that
//! alternates between a near and a far timeout would fill the queue with dead far ones. Here a
//! node owns one place in a 4-ary heap. Moving a timeout later does not even touch the heap: the
//! place stays early, and when it comes up the world asks the machine again.
//!
//! The next few places leave the heap together, in order, so that the world can read their nodes
//! from memory before the first of them has its turn.

/// Not in the heap, and not among the next places.
const ABSENT: u32 = u32::MAX;
/// Among the next places.
const NEXT: u32 = u32::MAX - 1;
/// Places that leave the heap together: about as many nodes as the memory delivers at a time.
const NEXT_MAX: usize = 32;

/// Earliest first; equal times in the order of node numbers.
#[derive(Default)]
pub(crate) struct Timers {
    heap: Vec<(u64, u32)>,
    /// The places that left the heap, the first place last.
    next: Vec<(u64, u32)>,
    place: Vec<u32>,
}

impl Timers {
    /// Makes room for the next node.
    pub(crate) fn add_node(&mut self) {
        self.place.push(ABSENT);
    }

    /// The time of the first place; `u64::MAX` when no node has a place.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        let heads = [self.next.last(), self.heap.first()];
        heads.into_iter().flatten().map(|&(time, _)| time).min().unwrap_or(u64::MAX)
    }

    /// Makes sure that the node comes up at `time` or before.
    #[inline]
    pub(crate) fn arm(&mut self, node: u32, time: u64) {
        match self.place[node as usize] {
            NEXT => {
                let is_later = |&(at, other): &(u64, u32)| other == node && time < at;
                if self.next.iter().any(is_later) {
                    self.remove(node);
                    self.arm(node, time);
                }
            }
            ABSENT => {
                self.heap.push((time, node));
                self.rise(self.heap.len() - 1);
            }
            place if time < self.heap[place as usize].0 => {
                self.heap[place as usize].0 = time;
                self.rise(place as usize);
            }
            _ => {}
        }
    }

    /// Takes the next few places before `end` out of the heap. While some are out of it already,
    /// takes none and returns false.
    #[inline]
    pub(crate) fn begin(&mut self, end: u64) -> bool {
        if !self.next.is_empty() {
            return false;
        }
        while let Some(&(time, node)) = self.heap.first()
            && time < end
            && self.next.len() < NEXT_MAX
        {
            self.remove(node);
            self.place[node as usize] = NEXT;
            self.next.push((time, node));
        }
        self.next.reverse();
        true
    }

    /// The nodes of the places that have left the heap.
    pub(crate) fn begun(&self) -> impl Iterator<Item = u32> + Clone {
        self.next.iter().map(|&(_, node)| node)
    }

    /// Takes the first place out.
    pub(crate) fn pop(&mut self) -> Option<(u64, u32)> {
        let in_heap = self.heap.first().copied();
        let is_next = |first: &mut (u64, u32)| in_heap.is_none_or(|other| *first < other);
        if let Some(first) = self.next.pop_if(is_next) {
            self.place[first.1 as usize] = ABSENT;
            return Some(first);
        }
        self.remove(in_heap?.1);
        in_heap
    }

    /// Takes the node out, if it is in.
    pub(crate) fn remove(&mut self, node: u32) {
        let place = core::mem::replace(&mut self.place[node as usize], ABSENT);
        if place == NEXT {
            self.next.retain(|&(_, other)| other != node);
        }
        if place >= NEXT {
            return;
        }
        let place = place as usize;
        let Some(last) = self.heap.pop() else { return };
        if place < self.heap.len() {
            self.heap[place] = last;
            self.place[last.1 as usize] = place as u32;
            self.sink(place);
            self.rise(place);
        }
    }

    /// Takes all nodes out, in no order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (u64, u32)> {
        self.place.fill(ABSENT);
        self.heap.drain(..).chain(self.next.drain(..))
    }

    fn rise(&mut self, mut at: usize) {
        let entry = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / 4;
            if self.heap[parent] <= entry {
                break;
            }
            self.put(at, self.heap[parent]);
            at = parent;
        }
        self.put(at, entry);
    }

    fn sink(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let children = 4 * at + 1..(4 * at + 5).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { break };
            if self.heap[least] >= entry {
                break;
            }
            self.put(at, self.heap[least]);
            at = least;
        }
        self.put(at, entry);
    }

    #[inline]
    fn put(&mut self, at: usize, entry: (u64, u32)) {
        self.heap[at] = entry;
        self.place[entry.1 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use evenfall_core::Prng;

    use super::*;

    #[test]
    fn behaves_as_a_list_of_earliest_times() {
        let mut prng = Prng::new(9);
        let mut timers = Timers::default();
        let mut model = [u64::MAX; 50];
        (0..50).for_each(|_| timers.add_node());
        for _ in 0..20_000 {
            let node = prng.below(50) as u32;
            match prng.below(5) {
                4 => {
                    timers.begin(prng.below(1_000));
                }
                0 | 1 => {
                    let time = prng.below(1_000);
                    timers.arm(node, time);
                    model[node as usize] = model[node as usize].min(time);
                }
                2 => {
                    timers.remove(node);
                    model[node as usize] = u64::MAX;
                }
                _ => {
                    let first = (0..50).map(|n| (model[n as usize], n)).min();
                    let first = first.filter(|&(time, _)| time != u64::MAX);
                    assert_eq!(timers.first(), first.map_or(u64::MAX, |(time, _)| time));
                    assert_eq!(timers.pop(), first);
                    if let Some((_, node)) = first {
                        model[node as usize] = u64::MAX;
                    }
                }
            }
        }
    }
}
