//! One timer per node, in an indexed heap: re-arming leaves no garbage behind.
//!
//! A machine renames its next timeout after most inputs. Were each an event, a machine that
//! alternates between a near and a far timeout would fill the queue with dead far ones. Here a
//! node owns one place in a 4-ary heap. Moving a timeout later does not even touch the heap: the
//! place stays early, and when it comes up the world asks the machine again.

/// Not in the heap.
const ABSENT: u32 = u32::MAX;

/// Earliest first; equal times in the order of node numbers.
#[derive(Default)]
pub(crate) struct Timers {
    heap: Vec<(u64, u32)>,
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
        self.heap.first().map_or(u64::MAX, |&(time, _)| time)
    }

    /// Makes sure that the node comes up at `time` or before.
    #[inline]
    pub(crate) fn arm(&mut self, node: u32, time: u64) {
        let place = self.place[node as usize];
        if place == ABSENT {
            self.heap.push((time, node));
            self.rise(self.heap.len() - 1);
        } else if time < self.heap[place as usize].0 {
            self.heap[place as usize].0 = time;
            self.rise(place as usize);
        }
    }

    /// Calls `see` with each node that comes up before `end`, in no particular order.
    pub(crate) fn due(&self, end: u64, see: &mut impl FnMut(u32)) {
        self.due_from(0, end, see);
    }

    fn due_from(&self, at: usize, end: u64, see: &mut impl FnMut(u32)) {
        let Some(&(_, node)) = self.heap.get(at).filter(|(time, _)| *time < end) else { return };
        see(node);
        (4 * at + 1..=4 * at + 4).for_each(|child| self.due_from(child, end, see));
    }

    /// Takes the first place out.
    pub(crate) fn pop(&mut self) -> Option<(u64, u32)> {
        let first = *self.heap.first()?;
        self.remove(first.1);
        Some(first)
    }

    /// Takes the node out, if it is in.
    pub(crate) fn remove(&mut self, node: u32) {
        let place = core::mem::replace(&mut self.place[node as usize], ABSENT) as usize;
        if place == ABSENT as usize {
            return;
        }
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
        self.heap.drain(..)
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
            match prng.below(4) {
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
