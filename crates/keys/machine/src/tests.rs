use evenfall_core::Prng;

use super::*;

fn put(key: &str, value: &str, existing: Existing) -> KeyOperation {
    KeyOperation::put(key, value.to_owned(), existing)
}

/// A new key without a value.
fn new(key: &str, kind: KeyLifetime, numbered: bool, rights: Vec<Right>) -> KeyOperation {
    let (key, existing) = (key.into(), Existing::None);
    KeyOperation::Put { key, value: None, existing, kind, numbered, rights }
}

fn made(key: &str) -> KeyOperation {
    put(key, "", Existing::None)
}

fn call(session: u64, sequence: u64, command: Command) -> Bytes {
    by(session, 1, sequence, command)
}

/// A call of the connection that opened the session at this revision.
fn by(session: u64, opened: u64, sequence: u64, command: Command) -> Bytes {
    KeyCall { session, opened, sequence, at_ms: 1_000, command }.encode()
}

fn change(keys: &mut Keys, ops: Vec<KeyOperation>) -> Applied {
    keys.apply(&call(1, 0, Command::Change(ops)))
}

fn opened() -> Keys {
    let mut keys = Keys::new(1 << 20);
    keys.apply(&call(1, 0, Command::Open { timeout_ms: 4_000, password: 9, is_new: true }));
    keys
}

#[test]
fn a_compare_and_set_needs_the_version() {
    let mut keys = opened();
    assert!(matches!(change(&mut keys, vec![made("a")]).reply, KeyReply::Done(_)));
    let again = change(&mut keys, vec![made("a")]).reply;
    assert_eq!(again, KeyReply::Refused(0, KeyRefusal::KeyExists));
    let old = change(&mut keys, vec![put("a", "x", Existing::Version(1))]).reply;
    assert_eq!(old, KeyReply::Refused(0, KeyRefusal::BadVersion));
    let KeyReply::Done(done) = change(&mut keys, vec![put("a", "x", Existing::Version(0))]).reply
    else {
        panic!("version 0 is there")
    };
    assert_eq!(done[0].stat.version, 1);
    assert_eq!(keys.get("a").expect("a").value.as_deref(), Some(&b"x"[..]));
    let missing = change(&mut keys, vec![put("b", "x", Existing::Any(false))]).reply;
    assert_eq!(missing, KeyReply::Refused(0, KeyRefusal::NoKey));
}

#[test]
fn a_call_that_is_sent_again_is_answered_and_not_applied_again() {
    let mut keys = opened();
    let body = call(1, 5, Command::Change(vec![put("n", "x", Existing::Any(true))]));
    let first = keys.apply(&body);
    let second = keys.apply(&body);
    assert_eq!(first.reply, second.reply);
    assert_eq!((keys.get("n").expect("n").version, second.changes.len()), (0, 0));
    for sequence in 6..6 + REPLIES_MAX as u64 {
        keys.apply(&call(1, sequence, Command::Touch(vec![])));
    }
    let late = keys.apply(&body);
    assert_eq!(late.reply, KeyReply::Refused(0, KeyRefusal::Forgotten));
}

#[test]
fn a_session_changes_keys_from_its_last_connection_and_only_while_it_lives() {
    let mut keys = opened();
    let write = |by_revision, sequence| {
        let ops = vec![put("n", "x", Existing::Any(true))];
        by(1, by_revision, sequence, Command::Change(ops))
    };
    assert!(matches!(keys.apply(&write(1, 1)).reply, KeyReply::Done(_)));
    let again = Command::Open { timeout_ms: 4_000, password: 9, is_new: false };
    keys.apply(&call(1, 0, again));
    let second = keys.revision();
    for sequence in [0, 2] {
        let late = keys.apply(&write(1, sequence));
        assert_eq!(late.reply, KeyReply::Refused(0, KeyRefusal::Moved));
    }
    assert_eq!(
        keys.apply(&by(1, 1, 0, Command::Close)).reply,
        KeyReply::Refused(0, KeyRefusal::Moved)
    );
    assert_eq!(keys.revision(), second, "nothing could change");
    assert!(matches!(keys.apply(&write(1, 1)).reply, KeyReply::Done(_)), "it was applied before");
    assert!(
        matches!(keys.apply(&write(second, 2)).reply, KeyReply::Done(_)),
        "the call comes again"
    );
    assert_eq!(keys.get("n").expect("made").version, 1);
    let touched = keys.session(1).expect("open").touched;
    keys.apply(&call(0, 0, Command::Expire { session: 1, touched }));
    for (opened, sequence) in [(second, 0), (second, 3), (0, 0)] {
        let late = keys.apply(&write(opened, sequence));
        assert_eq!(late.reply, KeyReply::Refused(0, KeyRefusal::NoSession));
    }
    assert_eq!(keys.get("n").expect("made").version, 1);
}

#[test]
fn replies_that_are_kept_have_a_limit_over_all_sessions() {
    let mut keys = Keys::new(64 << 20);
    let mut opened = Vec::new();
    for id in 1..=2 {
        keys.apply(&call(id, 0, Command::Open { timeout_ms: 4_000, password: 9, is_new: true }));
        opened.push(keys.revision());
    }
    let ops: Vec<KeyOperation> = (0..OPS_MAX).map(|_| put("n", "", Existing::Any(true))).collect();
    let many = |sequence| by(1, opened[0], sequence, Command::Change(ops.clone()));
    let small = by(2, opened[1], 1, Command::Change(vec![made("m")]));
    keys.apply(&small);
    for sequence in 1..=9 {
        keys.apply(&many(sequence));
        assert!(keys.kept_bytes <= REPLIES_BYTES_MAX);
    }
    assert_eq!(keys.apply(&small).reply, KeyReply::Refused(0, KeyRefusal::Forgotten));
    assert_eq!(keys.apply(&many(1)).reply, KeyReply::Refused(0, KeyRefusal::Forgotten));
    assert!(matches!(keys.apply(&many(9)).reply, KeyReply::Done(_)));
    assert_eq!(Keys::decode(&keys.encode()).as_ref(), Ok(&keys));
    for (id, opened) in [1, 2].into_iter().zip(&opened) {
        keys.apply(&by(id, *opened, 0, Command::Close));
    }
    assert_eq!((keys.kept_bytes, keys.kept.len()), (0, 0));
}

#[test]
fn the_first_limit_holds_until_somebody_sets_another() {
    let mut keys = opened();
    let limit = |bytes, is_first| call(0, 0, Command::Limit { bytes, is_first });
    let long = |key: &str| vec![put(key, &"x".repeat(3_000), Existing::Any(true))];
    assert_eq!(keys.limit(), None);
    keys.apply(&limit(4_000, true));
    keys.apply(&limit(1 << 20, true));
    assert_eq!(keys.limit(), Some(4_000));
    assert!(matches!(change(&mut keys, long("a")).reply, KeyReply::Done(_)));
    assert_eq!(change(&mut keys, long("b")).reply, KeyReply::Refused(0, KeyRefusal::Full));
    keys.apply(&limit(8_000, false));
    assert!(matches!(change(&mut keys, long("b")).reply, KeyReply::Done(_)));
    keys.apply(&limit(1_000, false));
    let shorter = vec![put("b", "x", Existing::Any(true))];
    assert!(matches!(change(&mut keys, shorter).reply, KeyReply::Done(_)), "it only gets shorter");
    assert_eq!(Keys::decode(&keys.encode()).as_ref(), Ok(&keys));
}

#[test]
fn paths_need_parents_and_parents_stay_while_they_have_children() {
    let mut keys = opened();
    let orphan = change(&mut keys, vec![made("/a/b")]).reply;
    assert_eq!(orphan, KeyReply::Refused(0, KeyRefusal::NoParent));
    assert!(matches!(change(&mut keys, vec![made("/a"), made("/a/b")]).reply, KeyReply::Done(_)));
    let delete = |key: &str| KeyOperation::Delete { key: key.into(), version: None };
    let full = change(&mut keys, vec![delete("/a")]).reply;
    assert_eq!(full, KeyReply::Refused(0, KeyRefusal::NotEmpty));
    assert!(matches!(
        change(&mut keys, vec![delete("/a/b"), delete("/a")]).reply,
        KeyReply::Done(_)
    ));
    assert!(keys.is_empty() && keys.bytes() == Keys::new(0).bytes());
    for bad in ["", "/a/", "//a", "/a/./b", "a\0b"] {
        let reply = change(&mut keys, vec![made(bad)]).reply;
        assert!(matches!(reply, KeyReply::Refused(0, _)), "{bad:?}");
    }
}

#[test]
fn signs_of_life_are_no_revision_and_what_is_always_there_stays() {
    let mut keys = opened();
    change(&mut keys, vec![made("/a")]);
    keys.apply(&call(0, 0, Command::Touch(vec![1])));
    change(&mut keys, vec![made("/a/b")]);
    let above = keys.get("/a").expect("made");
    assert_eq!(above.children_modified, above.created + 1);
    for key in ALWAYS {
        let delete = KeyOperation::Delete { key: key.into(), version: None };
        assert_eq!(change(&mut keys, vec![delete]).reply, KeyReply::Refused(0, KeyRefusal::BadKey));
    }
    let set = put("/zookeeper/config", "x", Existing::Any(false));
    assert_eq!(asked_by(&mut keys, "ann", set), KeyReply::Refused(0, KeyRefusal::NoRight));
}

#[test]
fn ephemeral_keys_go_with_their_session_and_a_touch_saves_both() {
    let mut keys = opened();
    let lock = new("/lock-", KeyLifetime::Ephemeral, true, Vec::new());
    let KeyReply::Done(done) = change(&mut keys, vec![lock]).reply else { panic!("a session") };
    assert_eq!(&*done[0].key, "/lock-0000000000");
    let below = change(&mut keys, vec![made("/lock-0000000000/x")]).reply;
    assert_eq!(below, KeyReply::Refused(0, KeyRefusal::EphemeralParent));
    let set = change(&mut keys, vec![put("/lock-0000000000/x", "x", Existing::Any(false))]).reply;
    assert_eq!(set, KeyReply::Refused(0, KeyRefusal::NoKey), "nothing was to be made");
    let touched = keys.session(1).expect("open").touched;
    keys.apply(&call(0, 0, Command::Touch(vec![1])));
    keys.apply(&call(0, 0, Command::Expire { session: 1, touched }));
    assert!(keys.get("/lock-0000000000").is_some(), "the touch was ordered before");
    let gone = keys.apply(&call(0, 0, Command::Expire { session: 1, touched: touched + 1 }));
    assert_eq!((gone.changes.len(), gone.ended), (1, vec![1]));
    assert!(keys.get("/lock-0000000000").is_none() && keys.session(1).is_none());
}

fn right(bits: u32, name: &str) -> Right {
    Right { bits, who: AclIdentity::new("digest", name) }
}

/// What the identity `name` is answered.
fn asked_by(keys: &mut Keys, name: &str, op: KeyOperation) -> KeyReply {
    let command = Command::ChangeBy(vec![AclIdentity::new("digest", name)], vec![op]);
    keys.apply(&call(1, 0, command)).reply
}

#[test]
fn a_session_that_opens_again_keeps_its_longest_timeout() {
    let mut keys = opened();
    let mut open = |timeout_ms| {
        let command = Command::Open { timeout_ms, password: 9, is_new: false };
        assert!(matches!(keys.apply(&call(1, 0, command)).reply, KeyReply::Done(_)));
        keys.session(1).expect("the session").timeout_ms
    };
    assert_eq!([open(2_000), open(9_000), open(4_000)], [4_000, 9_000, 9_000]);
}

#[test]
fn a_key_that_was_made_again_is_in_another_state() {
    let mut keys = opened();
    let expect = |key: &str, state| vec![KeyOperation::Expect { key: key.into(), state }];
    let says = |keys: &mut Keys, key: &str, state| change(keys, expect(key, state)).reply;
    let no = |refusal| KeyReply::Refused(0, refusal);
    assert!(
        matches!(says(&mut keys, "k", ExpectedState::Modified(0)), KeyReply::Done(_)),
        "missing"
    );
    assert_eq!(says(&mut keys, "k", ExpectedState::Modified(1)), no(KeyRefusal::NoKey));
    assert_eq!(says(&mut keys, "k", ExpectedState::Owned(1)), no(KeyRefusal::NoKey));
    change(&mut keys, vec![put("k", "x", Existing::None)]);
    let first = keys.get("k").expect("the key").modified;
    assert!(matches!(says(&mut keys, "k", ExpectedState::Modified(first)), KeyReply::Done(_)));
    assert_eq!(says(&mut keys, "k", ExpectedState::Modified(0)), no(KeyRefusal::KeyExists));
    assert_eq!(
        says(&mut keys, "k", ExpectedState::Owned(1)),
        no(KeyRefusal::BadVersion),
        "not ephemeral"
    );
    change(&mut keys, vec![KeyOperation::Delete { key: "k".into(), version: None }]);
    change(&mut keys, vec![put("k", "x", Existing::None)]);
    assert_eq!(keys.get("k").expect("the key").version, 0, "as before");
    assert_eq!(says(&mut keys, "k", ExpectedState::Modified(first)), no(KeyRefusal::BadVersion));
    keys.apply(&call(
        1,
        0,
        Command::Change(vec![new("/e", KeyLifetime::Ephemeral, false, vec![])]),
    ));
    assert!(matches!(says(&mut keys, "/e", ExpectedState::Owned(1)), KeyReply::Done(_)));
    assert_eq!(says(&mut keys, "/e", ExpectedState::Owned(2)), no(KeyRefusal::BadVersion));
}

#[test]
fn a_client_without_the_right_is_refused_and_the_right_is_that_of_the_key_or_its_parent() {
    let mut keys = opened();
    let set =
        |key: &str, version, rights| KeyOperation::SetRights { key: key.into(), version, rights };
    let delete = |key: &str| KeyOperation::Delete { key: key.into(), version: None };
    let no = KeyReply::Refused(0, KeyRefusal::NoRight);
    let own = vec![right(rights::ALL, "ann"), right(rights::READ, "bob")];
    let made_own = asked_by(&mut keys, "ann", new("/a", KeyLifetime::Persistent, false, own));
    assert!(matches!(made_own, KeyReply::Done(_)));
    assert_eq!(asked_by(&mut keys, "bob", made("/a/b")), no);
    assert!(matches!(asked_by(&mut keys, "ann", made("/a/b")), KeyReply::Done(_)));
    assert_eq!(asked_by(&mut keys, "bob", delete("/a/b")), no, "the right is that of the parent");
    let check = KeyOperation::Check { key: "/a".into(), version: Some(0) };
    assert!(matches!(asked_by(&mut keys, "bob", check.clone()), KeyReply::Done(_)));
    assert_eq!(asked_by(&mut keys, "eve", check), no);
    assert_eq!(asked_by(&mut keys, "bob", put("/a", "x", Existing::Any(false))), no);
    assert_eq!(asked_by(&mut keys, "bob", set("/a", None, vec![])), no);
    let old = asked_by(&mut keys, "ann", set("/a", Some(1), vec![]));
    assert_eq!(old, KeyReply::Refused(0, KeyRefusal::BadVersion));
    let KeyReply::Done(done) = asked_by(&mut keys, "ann", set("/a", Some(0), vec![])) else {
        panic!("ann may")
    };
    assert_eq!((done[0].stat.rights_version, done[0].stat.version), (1, 0));
    assert!(matches!(asked_by(&mut keys, "bob", delete("/a/b")), KeyReply::Done(_)));
    let before = keys.bytes();
    asked_by(&mut keys, "bob", set("/a", None, vec![right(1, "a long name")]));
    assert!(keys.bytes() > before);
    let deleted = change(&mut keys, vec![delete("/a")]).reply;
    assert!(matches!(deleted, KeyReply::Done(_)), "calls of nodes may all");
    assert_eq!(keys.bytes(), Keys::new(0).bytes());
}

/// What is deleted when a node names a key.
fn reaped(keys: &mut Keys, node: u32, key: &str, seen: u64) -> usize {
    let named = vec![(key.to_owned(), seen)];
    let command = Command::Reap { node, nodes: 3, keys: named };
    keys.apply(&call(0, 0, command)).changes.len()
}

#[test]
fn a_timed_key_ends_when_most_nodes_say_so_and_nothing_was_set_between() {
    let mut keys = opened();
    change(&mut keys, vec![new("/t", KeyLifetime::Timed(100), false, vec![])]);
    let first = keys.get("/t").expect("made").modified;
    assert_eq!((reaped(&mut keys, 0, "/t", first), reaped(&mut keys, 0, "/t", first)), (0, 0));
    change(&mut keys, vec![put("/t", "x", Existing::Any(false))]);
    assert_eq!(reaped(&mut keys, 1, "/t", first), 0, "the value was set since");
    let second = keys.get("/t").expect("not ended").modified;
    assert_eq!(reaped(&mut keys, 2, "/t", second), 0);
    change(&mut keys, vec![made("/t/c")]);
    assert_eq!(reaped(&mut keys, 1, "/t", second), 0, "there is a child");
    change(&mut keys, vec![KeyOperation::Delete { key: "/t/c".into(), version: None }]);
    let again = Keys::decode(&keys.encode()).expect("our own");
    assert_eq!(again, keys, "votes are part of a snapshot");
    assert_eq!((reaped(&mut keys, 1, "/t", second), keys.get("/t")), (1, None));
    assert_eq!(reaped(&mut keys, 1, "/t", second), 0);
}

#[test]
fn a_container_ends_when_its_last_child_is_gone_and_not_before_its_first() {
    let mut keys = opened();
    change(&mut keys, vec![new("/c", KeyLifetime::Container, false, vec![])]);
    let seen = keys.get("/c").expect("made").children_modified;
    assert_eq!(reaped(&mut keys, 0, "/c", seen), 0, "it never had a child");
    change(&mut keys, vec![made("/c/x")]);
    change(&mut keys, vec![KeyOperation::Delete { key: "/c/x".into(), version: None }]);
    assert_eq!(reaped(&mut keys, 0, "/c", seen), 0, "the node has not seen the child");
    let seen = keys.get("/c").expect("not ended").children_modified;
    assert_eq!(reaped(&mut keys, 0, "/c", seen), 1);
    change(&mut keys, vec![made("/p")]);
    let seen = keys.get("/p").expect("made").modified;
    assert_eq!((0..3).map(|node| reaped(&mut keys, node, "/p", seen)).sum::<usize>(), 0);
}

/// Any list of operations either takes effect or leaves everything but the revision as it was, and
/// a snapshot comes back as it was.
#[test]
fn refused_calls_change_nothing_and_snapshots_come_back() {
    let mut prng = Prng::new(3);
    let mut keys = opened();
    let mut refused = 0;
    for _ in 2..4_000 {
        let op = |prng: &mut Prng| {
            let names = ["/", "/a", "/a/b", "/a/b/c", "/a/d", "k", "l"];
            let key = names[prng.below(7) as usize].to_owned();
            let value = prng.chance(0.9).then(|| Bytes::from(vec![7; prng.below(9) as usize]));
            let rights = match prng.below(8) {
                0 => vec![right(1 << prng.below(5), "ann")],
                _ => Vec::new(),
            };
            let version = prng.chance(0.3).then(|| prng.below(3) as u32);
            match prng.below(6) {
                0 => KeyOperation::Check { key, version },
                5 => {
                    let states = [
                        ExpectedState::Modified(prng.below(99)),
                        ExpectedState::Owned(prng.below(2)),
                    ];
                    KeyOperation::Expect { key, state: states[prng.below(2) as usize] }
                }
                1 => KeyOperation::Delete { key, version },
                2 => KeyOperation::SetRights { key, version, rights },
                _ => {
                    let existing = match prng.below(4) {
                        0 => Existing::None,
                        1 => Existing::Version(prng.below(3) as u32),
                        other => Existing::Any(other == 2),
                    };
                    let kinds = [
                        KeyLifetime::Persistent,
                        KeyLifetime::Ephemeral,
                        KeyLifetime::Container,
                        KeyLifetime::Timed(5),
                    ];
                    let kind = kinds[prng.below(4) as usize];
                    KeyOperation::Put {
                        key,
                        value,
                        existing,
                        kind,
                        numbered: prng.chance(0.1),
                        rights,
                    }
                }
            }
        };
        let ops = (0..=prng.below(4)).map(|_| op(&mut prng)).collect();
        let before = keys.clone();
        let who = if prng.chance(0.7) { "ann" } else { "bob" };
        let command = Command::ChangeBy(vec![AclIdentity::new("digest", who)], ops);
        let applied = keys.apply(&call(1, 0, command));
        if matches!(applied.reply, KeyReply::Refused(..)) {
            refused += 1;
            assert!(applied.changes.is_empty());
            assert_eq!(Keys { revision: before.revision + 1, ..before }, keys);
        }
    }
    assert!((500..3_900).contains(&refused), "{refused}");
    let timed: Vec<_> = keys.mortal().map(|(key, e)| (key.to_owned(), e.modified)).collect();
    keys.apply(&call(0, 0, Command::Reap { node: 1, nodes: 3, keys: timed }));
    let again = Keys::decode(&keys.encode()).expect("our own");
    assert_eq!(again, keys);
}

#[test]
fn any_bytes_are_a_call_or_refused() {
    let mut prng = Prng::new(4);
    let op = put("/a", "value", Existing::Version(3));
    let rights = vec![right(rights::ALL, "ann")];
    let timed = new("/b", KeyLifetime::Timed(9), true, rights.clone());
    let set = KeyOperation::SetRights { key: "/b".into(), version: Some(2), rights };
    let who = vec![AclIdentity::new("ip", "127.0.0.1")];
    let keys = vec![("/b".to_owned(), 7)];
    let good = [
        call(1, 2, Command::ChangeBy(who, vec![op, timed, set, made("x")])),
        call(0, 0, Command::Reap { node: 1, nodes: 3, keys }),
    ];
    for turn in 0..10_000 {
        let mut bytes = good[turn % 2].to_vec();
        let at = prng.below(bytes.len() as u64) as usize;
        bytes[at] = prng.next_u64() as u8;
        bytes.truncate(1 + prng.below(bytes.len() as u64) as usize);
        let body = Bytes::from(bytes);
        if let Ok(call) = KeyCall::decode(&body) {
            assert_eq!(KeyCall::decode(&call.encode()), Ok(call));
        }
    }
}

#[test]
fn the_characters_that_zookeeper_refuses_are_refused() {
    for bad in ['\0', '\u{1f}', '\u{9f}', '\u{e000}', '\u{f8ff}', '\u{fff0}', '\u{ffff}'] {
        assert_eq!(check_key(&format!("/a{bad}")), Err(KeyRefusal::BadKey), "{bad:?}");
    }
    assert_eq!(check_key("/\u{a0}\u{d7ff}\u{f900}\u{ffef}\u{10000}"), Ok(()));
}
