//! A directory of names in evenfall's own ordered keys.
//!
//! A lease is the session of the client, and its keys are ephemeral. A change is refused after its
//! session has ended, so a node that has lost its lease changes nothing. The lease is renewed by a
//! change of nothing, which is ordered: a ping would count only where it arrived.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Mutex;
use std::time::Duration;

use evenfall_keys_client::keys::{
    Existing, ExpectedState, KeyLifetime, KeyOperation, KeyRefusal, check_key,
};
use evenfall_keys_client::{ClientError, KeysClient};

use super::NamesError;
use super::name_service::{self, Condition, NameService, Step};
use crate::{expect_loopback, lock};

/// A request without an answer within this time has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Keys in one answer.
const PAGE_KEYS: usize = 500;

/// A client of the replicas.
pub struct OrderedNames {
    replicas: Vec<SocketAddr>,
    /// Reads have a client of their own, so that they do not hold up the renewals of the lease.
    reads: Mutex<KeysClient>,
    held: Mutex<Held>,
}

struct Held {
    client: KeysClient,
    /// The session that is the lease; 0 for none.
    lease: u64,
    /// The keys that were put under the lease.
    keys: Vec<String>,
}

impl OrderedNames {
    /// A client of the replicas at `host:port`, several separated by commas. A connection is made
    /// when it is needed.
    ///
    /// # Errors
    /// When an endpoint is no address, or not on this machine. The connections have no key, and
    /// without a key nothing may leave loopback.
    pub fn connect(endpoints: &str) -> Result<Self, NamesError> {
        let mut replicas = Vec::new();
        for endpoint in endpoints.split(',') {
            let resolved = endpoint.to_socket_addrs();
            let addresses = resolved.map_err(|error| {
                NamesError::Failed(format!("replica {endpoint:?} of keys://: {error}"))
            })?;
            for address in addresses {
                expect_loopback(&format!("replica {endpoint}:"), address)
                    .map_err(|error| NamesError::Failed(error.to_string()))?;
                replicas.push(address);
            }
        }
        let client = || KeysClient::new(replicas.clone(), REQUEST_TIMEOUT);
        let held = Mutex::new(Held { client: client(), lease: 0, keys: Vec::new() });
        Ok(Self { reads: Mutex::new(client()), held, replicas })
    }
}

impl Drop for OrderedNames {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        if held.lease != 0 {
            // A lease that is not given back runs out by itself, as after a crash.
            held.client.abandon();
        }
    }
}

impl Held {
    /// Carries out all operations, or none. Returns whether their conditions held.
    fn change(&mut self, ops: &[KeyOperation]) -> Result<bool, NamesError> {
        let is_of_session = |op: &KeyOperation| match op {
            KeyOperation::Expect { state, .. } => matches!(state, ExpectedState::Owned(_)),
            KeyOperation::Put { kind, .. } => *kind == KeyLifetime::Ephemeral,
            _ => false,
        };
        let is_of_session = ops.iter().any(is_of_session);
        let mut done = self.client.change(ops.to_vec());
        if !is_of_session && matches!(done, Err(ClientError::Refused(KeyRefusal::NoSession))) {
            // The session was idle for too long, and this call opens another one.
            done = self.client.change(ops.to_vec());
        }
        match done {
            Ok(_) => Ok(true),
            Err(ClientError::Refused(
                KeyRefusal::NoKey
                | KeyRefusal::KeyExists
                | KeyRefusal::BadVersion
                | KeyRefusal::NoSession,
            )) => Ok(false),
            Err(ClientError::Refused(KeyRefusal::BadKey | KeyRefusal::TooLong)) => {
                let is_bad = |op: &&KeyOperation| check_key(op.key()).is_err();
                let what = match ops.iter().find(is_bad) {
                    Some(op) => format!("{:?} cannot be a key", op.key()),
                    None => "an entry is longer than the megabyte that they take".to_owned(),
                };
                Err(NamesError::Failed(format!("ordered keys: {what}")))
            }
            Err(error) => Err(said(error)),
        }
    }
}

impl NameService for OrderedNames {
    fn get(&self, key: &str) -> Result<Option<name_service::Found>, NamesError> {
        lock(&self.reads).get(key).map(|found| found.map(found_at)).map_err(said)
    }

    fn list(&self, prefix: &str) -> Result<Vec<name_service::Found>, NamesError> {
        let client = &mut lock(&self.reads);
        let (mut all, mut first) = (Vec::new(), prefix.to_owned());
        loop {
            let (page, has_more) = client.range(prefix, &first, PAGE_KEYS).map_err(said)?;
            all.extend(page.into_iter().map(found_at));
            match all.last() {
                // No key lies between a key and the same key with the least character behind it.
                Some(last) if has_more => first = format!("{}\0", last.key),
                _ => return Ok(all),
            }
        }
    }

    fn get_all(&self, keys: &[String]) -> Result<Vec<Option<name_service::Found>>, NamesError> {
        let client = &mut lock(&self.reads);
        // What was answered before this call is at the replica behind one wait.
        client.session().map_err(said)?;
        let found = keys.iter().map(|key| client.get_here(key).map(|found| found.map(found_at)));
        found.collect::<Result<_, _>>().map_err(said)
    }

    fn commit(&self, conditions: Vec<Condition>, steps: Vec<Step>) -> Result<bool, NamesError> {
        let mut held = lock(&self.held);
        let mut leased = Vec::new();
        for step in &steps {
            match step {
                Step::Put(_, _, 0) | Step::Delete(_) => {}
                Step::Put(key, _, lease) if *lease as u64 == held.lease => leased.push(key.clone()),
                // The lease was given back.
                Step::Put(..) => return Ok(false),
            }
        }
        if !leased.is_empty() && held.client.number() != held.lease {
            // The lease has ended, and the client goes on with another session.
            return Ok(false);
        }
        let conditions = conditions.into_iter().map(condition);
        let ops: Vec<KeyOperation> = conditions.chain(steps.into_iter().map(step)).collect();
        let is_done = held.change(&ops)?;
        if is_done {
            leased.retain(|key| !held.keys.contains(key));
            held.keys.append(&mut leased);
        }
        Ok(is_done)
    }

    fn lease_grant(&self, seconds: u64) -> Result<(i64, Duration), NamesError> {
        let client = KeysClient::new(self.replicas.clone(), REQUEST_TIMEOUT);
        let mut client = client.with_timeout(Duration::from_secs(seconds));
        let (lease, timeout) = client.session().map_err(said)?;
        *lock(&self.held) = Held { client, lease, keys: Vec::new() };
        Ok((lease as i64, timeout))
    }

    fn lease_revoke(&self, id: i64) -> Result<(), NamesError> {
        let mut held = lock(&self.held);
        if held.lease != id as u64 {
            return Err(NamesError::Failed(format!("lease {id:x} is of another node")));
        }
        held.lease = 0;
        held.client.end().map_err(said)
    }

    fn lease_keep_alive(&self, id: i64) -> Result<bool, NamesError> {
        let mut held = lock(&self.held);
        let owned = |key: &String| KeyOperation::Expect {
            key: key.clone(),
            state: ExpectedState::Owned(id as u64),
        };
        // A key that an operator has deleted ends the lease, too.
        let ops: Vec<KeyOperation> = held.keys.iter().map(owned).collect();
        let is_there = held.change(&ops)?;
        // Without keys, the call may have opened another session.
        let (session, _) = held.client.session().map_err(said)?;
        Ok(is_there && session == id as u64)
    }
}

fn condition(condition: Condition) -> KeyOperation {
    match condition {
        Condition::Unchanged(key, revision) => {
            KeyOperation::Expect { key, state: ExpectedState::Modified(revision as u64) }
        }
        Condition::Leased(key, lease) => {
            KeyOperation::Expect { key, state: ExpectedState::Owned(lease as u64) }
        }
    }
}

fn step(step: Step) -> KeyOperation {
    match step {
        Step::Put(key, value, 0) => KeyOperation::put(key, value, Existing::Any(true)),
        Step::Put(key, value, _) => {
            let (existing, kind) = (Existing::Any(true), KeyLifetime::Ephemeral);
            let (value, numbered, rights) = (Some(value), false, Vec::new());
            KeyOperation::Put { key, value, existing, kind, numbered, rights }
        }
        Step::Delete(key) => KeyOperation::Delete { key, version: None },
    }
}

fn found_at(found: evenfall_keys_client::FoundKey) -> name_service::Found {
    let (key, value, revision) = (found.key, found.value, found.stat.modified as i64);
    name_service::Found { key, value, revision }
}

fn said(error: ClientError) -> NamesError {
    use ClientError::{Refused, Unanswered};
    let told = |what: &dyn std::fmt::Display| format!("ordered keys: {what}");
    match error {
        Unanswered(what) => NamesError::Unavailable(told(&what)),
        // Whether the change was made is unknown, as without an answer.
        Refused(refusal @ (KeyRefusal::NoSession | KeyRefusal::Forgotten | KeyRefusal::Moved)) => {
            NamesError::Unavailable(told(&refusal))
        }
        Refused(KeyRefusal::Full) => {
            NamesError::Failed(told(&"they are full: `evenfall kv limit` sets a higher limit"))
        }
        other => NamesError::Failed(told(&other)),
    }
}
