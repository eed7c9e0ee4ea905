//! An object store that fails, answers too late, and lists late.
//!
//! A request may fail before or after it has taken effect, and the caller cannot tell which. A
//! request that was not answered in time may still be under way, and take effect after later
//! requests. A listing shows puts and deletes only some requests later. Reads of one name see the
//! last put that took effect.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use evenfall_core::{Objects, Prng, PutOutcome, StorageError};

/// The faults of an object store and how often they happen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObjectFaults {
    /// Share of requests that fail without effect.
    pub fails: f64,
    /// Share of requests that take effect and whose answer comes too late.
    pub answers_late: f64,
    /// Requests after which a late request takes effect at the latest; zero for an effect at once.
    pub late_by: u64,
    /// Requests after which a listing shows a put or delete.
    pub list_lag: u64,
}

impl ObjectFaults {
    /// Faults with random shares and delays up to these.
    pub(crate) fn drawn(&self, prng: &mut Prng) -> Self {
        Self {
            fails: self.fails * prng.unit(),
            answers_late: self.answers_late * prng.unit(),
            late_by: prng.below(self.late_by + 1),
            list_lag: prng.below(self.list_lag + 1),
        }
    }
}

/// A request that changes something.
#[derive(Debug)]
enum Change {
    Put(Bytes),
    PutNew(Bytes),
    Swap(Bytes, Bytes),
    Delete,
}

#[derive(Debug)]
struct State {
    objects: BTreeMap<String, Bytes>,
    /// The request from which on listings show the change, the name, and whether the object exists.
    listed: Vec<(u64, String, bool)>,
    shown: BTreeMap<String, ()>,
    /// Unanswered requests, each with the request after which it takes effect.
    under_way: Vec<(u64, String, Change)>,
    requests: u64,
    failures: u64,
    faults: ObjectFaults,
    prng: Prng,
}

/// A simulated object store. Clones are the same store.
#[derive(Clone, Debug)]
pub struct SimObjects(Rc<RefCell<State>>);

impl SimObjects {
    /// An empty object store.
    pub fn new(seed: u64, faults: ObjectFaults) -> Self {
        Self(Rc::new(RefCell::new(State {
            objects: BTreeMap::new(),
            listed: Vec::new(),
            shown: BTreeMap::new(),
            under_way: Vec::new(),
            requests: 0,
            failures: 0,
            faults,
            prng: Prng::new(seed),
        })))
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: ObjectFaults) {
        self.0.borrow_mut().faults = faults;
    }

    /// Requests so far, and those of them that failed.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.0.borrow();
        (state.requests, state.failures)
    }

    /// Begins a request. Returns how it fails, if it fails.
    fn begin(&self) -> Option<Failure> {
        let state = &mut *self.0.borrow_mut();
        state.requests += 1;
        let (now, under_way) = (state.requests, std::mem::take(&mut state.under_way));
        for (at, name, change) in under_way {
            match at <= now {
                true => drop(state.apply(&name, change)),
                false => state.under_way.push((at, name, change)),
            }
        }
        let (fails, late) = (state.faults.fails, state.faults.answers_late);
        let failure = match state.prng.chance(fails) {
            true => Failure::Refused,
            false if state.prng.chance(late) => Failure::Unanswered,
            false => return None,
        };
        state.failures += 1;
        Some(failure)
    }

    fn change(&self, name: &str, change: Change) -> Result<PutOutcome, StorageError> {
        let failure = self.begin();
        let state = &mut *self.0.borrow_mut();
        match failure {
            None => return Ok(state.apply(name, change)),
            Some(Failure::Refused) => {}
            Some(Failure::Unanswered) if state.faults.late_by == 0 || state.prng.chance(0.5) => {
                state.apply(name, change);
            }
            Some(Failure::Unanswered) => {
                let at = state.requests + 1 + state.prng.below(state.faults.late_by);
                state.under_way.push((at, name.into(), change));
            }
        }
        Err(failure.unwrap_or(Failure::Refused).of(name))
    }

    fn look<T>(&self, name: &str, look: impl FnOnce(&mut State) -> T) -> Result<T, StorageError> {
        match self.begin() {
            Some(failure) => Err(failure.of(name)),
            None => Ok(look(&mut self.0.borrow_mut())),
        }
    }
}

/// How a request fails.
#[derive(Clone, Copy)]
enum Failure {
    /// Without effect.
    Refused,
    /// With its effect, at once or later.
    Unanswered,
}

impl Failure {
    fn of(self, name: &str) -> StorageError {
        let what = match self {
            Self::Refused => "503 slow down",
            Self::Unanswered => "no answer in time",
        };
        StorageError::Unavailable { name: name.into(), what: what.into() }
    }
}

impl State {
    fn note(&mut self, name: &str, there: bool) {
        self.listed.push((self.requests + self.faults.list_lag, name.into(), there));
    }

    fn apply(&mut self, name: &str, change: Change) -> PutOutcome {
        let there = self.objects.get(name);
        let bytes = match change {
            Change::PutNew(_) if there.is_some() => return PutOutcome::Exists,
            Change::Swap(was, _) if there != Some(&was) => return PutOutcome::Exists,
            Change::Put(bytes) | Change::PutNew(bytes) | Change::Swap(_, bytes) => bytes,
            Change::Delete => {
                self.objects.remove(name);
                self.note(name, false);
                return PutOutcome::Created;
            }
        };
        self.objects.insert(name.into(), bytes);
        self.note(name, true);
        PutOutcome::Created
    }
}

impl Objects for SimObjects {
    fn put(&self, name: &str, bytes: Bytes) -> Result<(), StorageError> {
        self.change(name, Change::Put(bytes)).map(drop)
    }

    fn put_new(&self, name: &str, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        self.change(name, Change::PutNew(bytes))
    }

    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        self.change(name, Change::Swap(was.clone(), bytes))
    }

    fn get(&self, name: &str, offset: u64, len: usize) -> Result<Option<Bytes>, StorageError> {
        self.look(name, |state| {
            let bytes = state.objects.get(name)?;
            let from = (offset as usize).min(bytes.len());
            Some(bytes.slice(from..from.saturating_add(len).min(bytes.len())))
        })
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        self.change(name, Change::Delete).map(drop)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        self.look(prefix, |state| {
            let now = state.requests;
            let due = state.listed.iter().take_while(|(at, ..)| *at <= now).count();
            for (_, name, there) in state.listed.drain(..due) {
                match there {
                    true => state.shown.insert(name, ()),
                    false => state.shown.remove(&name),
                };
            }
            state.shown.keys().filter(|name| name.starts_with(prefix)).cloned().collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unanswered_put_may_land_behind_its_successor() {
        let (mut overtaken, mut at_once) = (0, 0);
        for seed in 0..50 {
            let late = ObjectFaults { answers_late: 1.0, late_by: 3, ..ObjectFaults::default() };
            let objects = SimObjects::new(seed, late);
            assert!(objects.put("a", Bytes::from_static(b"old")).is_err());
            objects.set_faults(ObjectFaults::default());
            at_once += u32::from(objects.get("a", 0, 9).unwrap().is_some());
            objects.put("a", Bytes::from_static(b"new")).unwrap();
            for _ in 0..3 {
                objects.list("").unwrap();
            }
            let there = objects.get("a", 0, 9).unwrap().unwrap();
            overtaken += u32::from(there == "old");
        }
        assert!(overtaken > 5 && at_once > 5, "{overtaken} {at_once}");
    }

    #[test]
    fn a_listing_learns_puts_and_deletes_late_and_a_get_at_once() {
        let lag = ObjectFaults { list_lag: 4, ..ObjectFaults::default() };
        let objects = SimObjects::new(1, lag);
        objects.put("a", Bytes::from_static(b"1")).unwrap();
        assert!(objects.get("a", 0, 9).unwrap().is_some());
        let shown: Vec<_> = (0..4).map(|_| objects.list("").unwrap().len()).collect();
        assert_eq!(shown, [0, 0, 1, 1]);
        objects.delete("a").unwrap();
        assert!(objects.get("a", 0, 9).unwrap().is_none());
        let shown: Vec<_> = (0..4).map(|_| objects.list("").unwrap().len()).collect();
        assert_eq!(shown, [1, 1, 0, 0]);
    }

    #[test]
    fn a_read_that_failed_succeeds_later() {
        let objects = SimObjects::new(1, ObjectFaults::default());
        objects.put("a", Bytes::from_static(b"1")).unwrap();
        objects.set_faults(ObjectFaults { fails: 0.5, ..ObjectFaults::default() });
        let reads: Vec<_> = (0..50).map(|_| objects.get("a", 0, 9)).collect();
        assert!(reads.iter().any(Result::is_err));
        assert!(reads.iter().flatten().all(|read| read.as_deref() == Some(b"1")));
    }
}
