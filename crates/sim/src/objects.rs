//! An object store that fails, answers too late, and lists late.
//!
//! A request may fail before or after it has taken effect, and the caller cannot tell which. A
//! listing shows puts and deletes only some requests later. Reads of one name see the last put.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use evenfall_core::{Objects, Prng, PutOutcome, StorageError};

/// How often what goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObjectFaults {
    /// Share of requests that fail without effect.
    pub fails: f64,
    /// Share of requests that take effect and whose answer comes too late.
    pub answers_late: f64,
    /// Requests after which a listing shows a put or delete.
    pub list_lag: u64,
}

#[derive(Debug)]
struct State {
    objects: BTreeMap<String, Bytes>,
    /// Name, whether it is there, and the request at which a listing learns it.
    listed: Vec<(u64, String, bool)>,
    shown: BTreeMap<String, ()>,
    requests: u64,
    failures: u64,
    faults: ObjectFaults,
    prng: Prng,
}

/// The object store; clones are the same one.
#[derive(Clone, Debug)]
pub struct SimObjects(Rc<RefCell<State>>);

impl SimObjects {
    /// An empty one.
    pub fn new(seed: u64, faults: ObjectFaults) -> Self {
        Self(Rc::new(RefCell::new(State {
            objects: BTreeMap::new(),
            listed: Vec::new(),
            shown: BTreeMap::new(),
            requests: 0,
            failures: 0,
            faults,
            prng: Prng::new(seed),
        })))
    }

    /// Other faults from now on.
    pub fn set_faults(&self, faults: ObjectFaults) {
        self.0.borrow_mut().faults = faults;
    }

    /// Requests so far, and those of them that failed.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.0.borrow();
        (state.requests, state.failures)
    }

    fn request<T>(&self, name: &str, act: impl FnOnce(&mut State) -> T) -> Result<T, StorageError> {
        let state = &mut *self.0.borrow_mut();
        state.requests += 1;
        let (fails, late) = (state.faults.fails, state.faults.answers_late);
        let what = if state.prng.chance(fails) {
            "503 slow down"
        } else {
            let done = act(state);
            if !state.prng.chance(late) {
                return Ok(done);
            }
            "no answer in time"
        };
        state.failures += 1;
        Err(StorageError::Unavailable { name: name.into(), what: what.into() })
    }
}

impl State {
    fn note(&mut self, name: &str, there: bool) {
        self.listed.push((self.requests + self.faults.list_lag, name.into(), there));
    }
}

impl Objects for SimObjects {
    fn put(&self, name: &str, bytes: Bytes) -> Result<(), StorageError> {
        self.request(name, |state| {
            state.objects.insert(name.into(), bytes);
            state.note(name, true);
        })
    }

    fn put_new(&self, name: &str, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        self.request(name, |state| {
            if state.objects.contains_key(name) {
                return PutOutcome::Exists;
            }
            state.objects.insert(name.into(), bytes);
            state.note(name, true);
            PutOutcome::Created
        })
    }

    fn swap(&self, name: &str, was: &Bytes, bytes: Bytes) -> Result<PutOutcome, StorageError> {
        self.request(name, |state| {
            if state.objects.get(name) != Some(was) {
                return PutOutcome::Exists;
            }
            state.objects.insert(name.into(), bytes);
            PutOutcome::Created
        })
    }

    fn get(&self, name: &str, offset: u64, len: usize) -> Result<Option<Bytes>, StorageError> {
        self.request(name, |state| {
            let bytes = state.objects.get(name)?;
            let from = (offset as usize).min(bytes.len());
            Some(bytes.slice(from..from.saturating_add(len).min(bytes.len())))
        })
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        self.request(name, |state| {
            state.objects.remove(name);
            state.note(name, false);
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        self.request(prefix, |state| {
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
