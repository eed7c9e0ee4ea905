use evenfall_core::Prng;

use super::*;

fn put(key: &str, value: &str, existing: Existing) -> Op {
    let value = Bytes::copy_from_slice(value.as_bytes());
    Op::Put { key: key.into(), value, existing, kind: Kind::Persistent, numbered: false }
}

fn made(key: &str) -> Op {
    put(key, "", Existing::None)
}

fn call(session: u64, sequence: u64, command: Command) -> Bytes {
    Call { session, sequence, at_ms: 1_000, command }.encode()
}

fn change(keys: &mut Keys, ops: Vec<Op>) -> Applied {
    let revision = keys.revision() + 1;
    keys.apply(revision, &call(1, 0, Command::Change(ops)))
}

fn opened() -> Keys {
    let mut keys = Keys::new(1 << 20);
    keys.apply(1, &call(1, 0, Command::Open { timeout_ms: 4_000, password: 9, is_new: true }));
    keys
}

#[test]
fn a_compare_and_set_needs_the_version() {
    let mut keys = opened();
    assert!(matches!(change(&mut keys, vec![made("a")]).reply, Reply::Done(_)));
    let again = change(&mut keys, vec![made("a")]).reply;
    assert_eq!(again, Reply::Refused(0, Refusal::KeyExists));
    let old = change(&mut keys, vec![put("a", "x", Existing::Version(1))]).reply;
    assert_eq!(old, Reply::Refused(0, Refusal::BadVersion));
    let Reply::Done(done) = change(&mut keys, vec![put("a", "x", Existing::Version(0))]).reply
    else {
        panic!("version 0 is there")
    };
    assert_eq!((done[0].stat.version, &keys.get("a").expect("a").value[..]), (1, &b"x"[..]));
    let missing = change(&mut keys, vec![put("b", "x", Existing::Any(false))]).reply;
    assert_eq!(missing, Reply::Refused(0, Refusal::NoKey));
}

#[test]
fn a_call_that_is_sent_again_is_answered_and_not_applied_again() {
    let mut keys = opened();
    let body = call(1, 5, Command::Change(vec![put("n", "x", Existing::Any(true))]));
    let first = keys.apply(2, &body);
    let second = keys.apply(3, &body);
    assert_eq!(first.reply, second.reply);
    assert_eq!((keys.get("n").expect("n").version, second.changes.len()), (0, 0));
    for sequence in 6..6 + REPLIES_MAX as u64 {
        keys.apply(sequence, &call(1, sequence, Command::Touch(vec![])));
    }
    let late = keys.apply(999, &body);
    assert_eq!(late.reply, Reply::Refused(0, Refusal::Forgotten));
}

#[test]
fn paths_need_parents_and_parents_stay_while_they_have_children() {
    let mut keys = opened();
    let orphan = change(&mut keys, vec![made("/a/b")]).reply;
    assert_eq!(orphan, Reply::Refused(0, Refusal::NoParent));
    assert!(matches!(change(&mut keys, vec![made("/a"), made("/a/b")]).reply, Reply::Done(_)));
    let delete = |key: &str| Op::Delete { key: key.into(), version: None };
    let full = change(&mut keys, vec![delete("/a")]).reply;
    assert_eq!(full, Reply::Refused(0, Refusal::NotEmpty));
    assert!(matches!(change(&mut keys, vec![delete("/a/b"), delete("/a")]).reply, Reply::Done(_)));
    assert!(keys.is_empty() && keys.bytes() == 0);
    for bad in ["", "/a/", "//a", "/a/./b", "a\0b"] {
        let reply = change(&mut keys, vec![made(bad)]).reply;
        assert!(matches!(reply, Reply::Refused(0, _)), "{bad:?}");
    }
}

#[test]
fn ephemeral_keys_go_with_their_session_and_a_touch_saves_both() {
    let mut keys = opened();
    let value = Bytes::new();
    let (existing, kind) = (Existing::None, Kind::Ephemeral);
    let lock = Op::Put { key: "/lock-".into(), value, existing, kind, numbered: true };
    let Reply::Done(done) = change(&mut keys, vec![lock]).reply else { panic!("a session") };
    assert_eq!(&*done[0].key, "/lock-0000000000");
    let below = change(&mut keys, vec![made("/lock-0000000000/x")]).reply;
    assert_eq!(below, Reply::Refused(0, Refusal::EphemeralParent));
    let touched = keys.session(1).expect("open").touched;
    keys.apply(10, &call(0, 0, Command::Touch(vec![1])));
    keys.apply(11, &call(0, 0, Command::Expire { session: 1, touched }));
    assert!(keys.get("/lock-0000000000").is_some(), "the touch was ordered before");
    let gone = keys.apply(12, &call(0, 0, Command::Expire { session: 1, touched: 10 }));
    assert_eq!((gone.changes.len(), gone.ended), (1, vec![1]));
    assert!(keys.get("/lock-0000000000").is_none() && keys.session(1).is_none());
}

/// Any list of operations either takes effect or leaves everything but the revision as it was, and
/// a snapshot comes back as it was.
#[test]
fn refused_calls_change_nothing_and_snapshots_come_back() {
    let mut prng = Prng::new(3);
    let mut keys = opened();
    let mut refused = 0;
    for revision in 2..4_000 {
        let op = |prng: &mut Prng| {
            let names = ["/a", "/a/b", "/a/b/c", "/a/d", "k", "l"];
            let key = names[prng.below(6) as usize].to_owned();
            let value = Bytes::from(vec![7; prng.below(9) as usize]);
            let version = prng.chance(0.3).then(|| prng.below(3) as u32);
            match prng.below(4) {
                0 => Op::Check { key, version },
                1 => Op::Delete { key, version },
                _ => {
                    let existing = match prng.below(4) {
                        0 => Existing::None,
                        1 => Existing::Version(prng.below(3) as u32),
                        other => Existing::Any(other == 2),
                    };
                    let kind = if prng.chance(0.2) { Kind::Ephemeral } else { Kind::Persistent };
                    Op::Put { key, value, existing, kind, numbered: prng.chance(0.1) }
                }
            }
        };
        let ops = (0..=prng.below(4)).map(|_| op(&mut prng)).collect();
        let before = keys.clone();
        let applied = keys.apply(revision, &call(1, 0, Command::Change(ops)));
        if matches!(applied.reply, Reply::Refused(..)) {
            refused += 1;
            assert!(applied.changes.is_empty());
            assert_eq!(Keys { revision, ..before }, keys);
        }
    }
    assert!((500..3_900).contains(&refused), "{refused}");
    let again = Keys::decode(&keys.encode(), 1 << 20).expect("our own");
    assert_eq!(again, keys);
}

#[test]
fn any_bytes_are_a_call_or_refused() {
    let mut prng = Prng::new(4);
    let op = put("/a", "value", Existing::Version(3));
    let good = call(1, 2, Command::Change(vec![op, made("x")]));
    for _ in 0..5_000 {
        let mut bytes = good.to_vec();
        let at = prng.below(bytes.len() as u64) as usize;
        bytes[at] = prng.next_u64() as u8;
        bytes.truncate(1 + prng.below(bytes.len() as u64) as usize);
        let body = Bytes::from(bytes);
        if let Ok(call) = Call::decode(&body) {
            assert_eq!(Call::decode(&call.encode()), Ok(call));
        }
    }
}
