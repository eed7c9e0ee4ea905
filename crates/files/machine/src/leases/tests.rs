use bytes::Bytes;

use super::*;
use crate::config::NameConfig;
use crate::groups::tests::{create, hand_in_at, say, write_all};
use crate::{DiskId, Nameserver};

const AT_MS: u64 = 1_764_659_700_000;

/// A nameserver with two dataservers, and a file on both of them.
fn names_with_file() -> (Nameserver, InodeId) {
    let mut names = Nameserver::new(NameConfig::default(), 1, &Bytes::new()).expect("no log");
    hear_all(&mut names, Timestamp::ZERO);
    let file = create(&mut names, "/a", 2);
    (names, file)
}

fn hear_all(names: &mut Nameserver, now: Timestamp) {
    (1..=2).for_each(|n| hand_in_at(names, now, n, Vec::new()));
}

fn grant(
    names: &mut Nameserver,
    now: Timestamp,
    file: InodeId,
    writer: &str,
) -> Result<u64, FilesRefusal> {
    names.grant_lease(now, AT_MS, 9, &Caller::superuser("ann"), file, writer)
}

/// Both members answer the seal of an epoch.
fn end_epoch(names: &mut Nameserver, now: Timestamp, file: InodeId, epoch: u64) {
    names.examine(now, file);
    for n in 1..=2 {
        let (held, disk, length, committed) = (epoch - 1, DiskId(n), 0, 0);
        let sealed = FilesControl::Sealed { file, epoch, held, disk, length, committed };
        say(names, now, n as u16, sealed);
    }
}

fn lease_of(names: &Nameserver, file: InodeId) -> WriterLease {
    names.namespace().file(file).expect("a file").lease.clone()
}

#[test]
fn times_are_said_as_people_read_them() {
    for (at_s, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_764_659_700, "2025-12-02T07:15:00Z"),
        (4_102_444_799, "2099-12-31T23:59:59Z"),
    ] {
        assert_eq!(utc_text(at_s * 1_000 + 999), text);
    }
}

#[test]
fn a_second_writer_is_told_who_holds_the_lease_since_when_and_until_when() {
    let (mut names, file) = names_with_file();
    assert_eq!(grant(&mut names, Timestamp::ZERO, file, "ann/1"), Ok(1));
    let refused = grant(&mut names, Timestamp::ZERO, file, "bob/2").expect_err("ann has it");
    assert_eq!(
        refused.to_string(),
        "/a: ann/1 holds the lease since 2025-12-02T07:15:00Z, and until 2025-12-02T07:16:00Z at \
         least"
    );
    assert!(matches!(refused, FilesRefusal::LeaseHeld(_)));
    // A writer that goes on after the death of a dataserver has the same name.
    assert_eq!(grant(&mut names, Timestamp::ZERO, file, "ann/1"), Ok(2));
    for name in ["", "a\nb", &"x".repeat(WRITER_BYTES_MAX + 1)] {
        let refused = grant(&mut names, Timestamp::ZERO, file, name);
        assert!(matches!(refused, Err(FilesRefusal::Invalid(_))), "{name:?}");
    }
}

#[test]
fn behind_the_soft_limit_a_lease_ends_by_a_new_epoch() {
    let (mut names, file) = names_with_file();
    grant(&mut names, Timestamp::ZERO, file, "ann/1").expect("nobody has it");
    let soft = names.config.lease_soft;
    // A renewal moves the limit. A renewal of another generation does not.
    let renewed = Timestamp::ZERO + soft / 2;
    names.lease_renewed(renewed, file, 1);
    names.lease_renewed(renewed + soft / 4, file, 7);
    let late = Timestamp::ZERO + soft;
    hear_all(&mut names, late);
    assert!(matches!(grant(&mut names, late, file, "bob/2"), Err(FilesRefusal::LeaseHeld(_))));

    let over = renewed + soft;
    hear_all(&mut names, over);
    for _ in 0..2 {
        let refused = grant(&mut names, over, file, "bob/2");
        assert!(matches!(refused, Err(FilesRefusal::Recovering(_))), "{refused:?}");
    }
    // The old writer wakes up too late to keep its lease.
    names.lease_renewed(over, file, 1);
    let refused = grant(&mut names, over, file, "ann/1");
    assert!(matches!(refused, Err(FilesRefusal::Recovering(_))), "{refused:?}");
    end_epoch(&mut names, over, file, 2);
    assert_eq!(lease_of(&names, file), WriterLease { generation: 2, holder: None });
    assert_eq!(names.namespace().file(file).expect("a file").group.epoch, 2);
    assert_eq!(grant(&mut names, over, file, "bob/2"), Ok(3));
}

#[test]
fn behind_the_hard_limit_a_lease_ends_although_nobody_asks() {
    let (mut names, file) = names_with_file();
    grant(&mut names, Timestamp::ZERO, file, "ann/1").expect("nobody has it");
    let hard = names.config.lease_hard;
    names.end_old_leases(Timestamp::ZERO + hard / 2);
    assert!(!names.held_leases()[0].is_ending);
    let over = Timestamp::ZERO + hard;
    hear_all(&mut names, over);
    names.end_old_leases(over);
    assert!(names.held_leases()[0].is_ending);
    end_epoch(&mut names, over, file, 2);
    assert_eq!(names.held_leases(), []);
}

#[test]
fn a_lease_outlives_a_restart_of_the_nameserver_and_ends_with_its_length() {
    let (mut names, file) = names_with_file();
    grant(&mut names, Timestamp::ZERO, file, "ann/1").expect("nobody has it");
    let mut log = Vec::new();
    write_all(&mut names, &mut log);
    let mut again = Nameserver::new(NameConfig::default(), 2, &log.into()).expect("our log");
    hear_all(&mut again, Timestamp::ZERO);
    let held = again.held_leases();
    assert_eq!((held.len(), held[0].holder.writer.as_str()), (1, "ann/1"));
    assert!(grant(&mut again, Timestamp::ZERO, file, "bob/2").is_err());

    let primary = again.namespace().file(file).expect("a file").group.members[0].0 as u16;
    let length = |closes| FilesControl::Length { file, epoch: 1, length: 5, closes };
    say(&mut again, Timestamp::ZERO, primary, length(Some(7)));
    assert_eq!(again.held_leases().len(), 1, "a lease of another generation");
    say(&mut again, Timestamp::ZERO, primary, length(Some(1)));
    assert_eq!(again.held_leases(), []);
    assert_eq!(grant(&mut again, Timestamp::ZERO, file, "bob/2"), Ok(3));
}

#[test]
fn nobody_makes_or_replaces_a_file_that_has_a_writer_but_by_overwriting() {
    let (mut names, file) = names_with_file();
    grant(&mut names, Timestamp::ZERO, file, "ann/1").expect("nobody has it");
    let ann = Caller::superuser("ann");
    let call = |overwrite| NamespaceCall::Create {
        path: "/a".into(),
        mode: 0o644,
        replication: 1,
        overwrite,
        writer: None,
        block_bytes: crate::config::BLOCK_BYTES,
    };
    let made = names.call(Timestamp::ZERO, AT_MS, 1, &ann, &call(false));
    assert!(matches!(made, Err(FilesRefusal::LeaseHeld(_))), "{made:?}");
    names.call(Timestamp::ZERO, AT_MS, 2, &ann, &call(true)).expect("it overwrites");
    assert_eq!(names.held_leases(), []);
}

#[test]
fn a_dataserver_of_an_earlier_build_gets_no_writers() {
    let (mut names, file) = names_with_file();
    for server in names.servers.values_mut() {
        server.checks_leases = false;
    }
    let refused = grant(&mut names, Timestamp::ZERO, file, "ann/1").expect_err("it checks none");
    assert!(refused.to_string().contains("earlier build"), "{refused}");
}

#[test]
fn an_append_is_taken_under_the_present_generation_alone() {
    let holder = LeaseHolder { writer: "ann/1".into(), since_ms: 0, until_ms: 60_000 };
    let held = WriterLease { generation: 5, holder: Some(holder) };
    assert_eq!(held.check_append(Some(5)), Ok(()));
    assert_eq!(held.check_append(Some(6)), Err(FilesRefusal::Again));
    assert!(matches!(held.check_append(None), Err(FilesRefusal::LeaseHeld(_))));
    let Err(FilesRefusal::LeaseLost(words)) = held.check_append(Some(3)) else {
        panic!("an old generation");
    };
    let until = "since 1970-01-01T00:00:00Z, and until 1970-01-01T00:01:00Z at least";
    assert_eq!(words, format!("the lease 3 has ended: ann/1 holds the lease {until}"));
    let free = held.after_end();
    assert_eq!(free.check_append(None), Ok(()));
    assert!(matches!(free.check_append(Some(5)), Err(FilesRefusal::LeaseLost(_))));
}
