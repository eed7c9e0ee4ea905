use std::time::Duration;

use evenfall_core::ClockError;

use super::clockbound::bound_of;
use super::sources::{bound_of_timex, chrony_bound, ptp_bound, root_distance};
use super::*;

#[test]
fn monotonic_never_goes_back() {
    let mut last = MonotonicClock::now();
    for _ in 0..10_000 {
        let now = MonotonicClock::now();
        assert!(now >= last);
        last = now;
    }
}

#[test]
fn stamps_of_the_kernel_are_bracketed_and_a_step_of_the_host_s_clock_is_seen() {
    let mut stamps = HostStamps::default();
    for _ in 0..100 {
        stamps.look();
    }
    let host = read(libc::CLOCK_REALTIME);
    let now = MonotonicClock::now();
    assert!(stamps.earliest(host) <= stamps.latest(host) && stamps.earliest(host) <= now);
    let mut stamps = HostStamps { offset_ns: [-1_000, -400] };
    assert!(stamps.narrow([-900, -300]) && stamps.narrow([-2_000, -450]));
    assert_eq!(stamps.offset_ns, [-900, -450], "each look narrows");
    let at = |ns: u64| Timestamp::from_nanos(ns);
    assert_eq!((stamps.earliest(5_000), stamps.latest(5_000)), (at(4_100), at(4_550)));
    assert!(!stamps.narrow([-449, -100]), "a step of a nanosecond");
    assert_eq!(stamps.offset_ns, [-449, -100], "looks before the step say nothing");
}

#[test]
fn one_host_has_one_clock() {
    let (source, why) = auto(true);
    assert_eq!(source, SyncSource::SameHost);
    assert!(why.contains("same clock"));
    let reading = source.read().unwrap();
    assert_eq!((reading.offset_ns, reading.error), (0, ClockError::SameClock));
}

#[test]
fn realtime_offset_leads_to_the_wall_clock() {
    let reading = SyncSource::Realtime.read().unwrap();
    let ours = MonotonicClock::now().nanos() as i64 + reading.offset_ns;
    let theirs = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as i64;
    assert!((ours - theirs).abs() < 50_000_000, "off by {} ns", ours - theirs);
}

#[test]
fn auto_says_why() {
    let (source, why) = auto(false);
    assert!(!why.is_empty());
    assert!(source.read().is_ok());
}

#[test]
fn undisciplined_clock_has_no_bound() {
    assert_eq!(bound_of_timex(libc::TIME_ERROR, 0, 1), None);
    assert_eq!(bound_of_timex(libc::TIME_OK, libc::STA_UNSYNC, 1), None);
    assert_eq!(bound_of_timex(libc::TIME_OK, 0, 250), Some(Duration::from_micros(250)));
}

#[test]
fn chrony_bound_is_the_root_distance() {
    let line = "A9FEA97B,169.254.169.123,4,1700000000.1,0.000001000,0.0,0.0,1.0,0.0,0.1,\
                0.000200000,0.000050000,16.0,Normal\n";
    assert_eq!(root_distance(line), Some(Duration::from_nanos(151_000)));
    assert_eq!(root_distance("00000000,,0,0,0,0,0,0,0,0,1,1,0,Not synchronised"), None);
    assert_eq!(root_distance("506 Cannot talk to daemon"), None);
}

#[test]
fn watch_gives_each_reading_once() {
    let mut watch = ClockWatch::start(SyncSource::SameHost, Duration::from_secs(3600)).unwrap();
    assert!(watch.fresh().is_some());
    assert!(watch.fresh().is_none());
}

/// A segment as the daemon of ClockBound writes it: as of second 100, void after second 1,100.
fn segment(version: u16, status: u32, generation: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0x414D_5A4E_u32, 0x4342_0200, 80] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(version.to_ne_bytes());
    bytes.extend(generation.to_ne_bytes());
    for long in [100_i64, 500_000_000, 1_100, 0, 20_000] {
        bytes.extend(long.to_ne_bytes());
    }
    let words = if version == 1 { vec![1_000, 0, status] } else { vec![0, 0, 1_000, status] };
    words.into_iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes.resize(80, 0);
    bytes
}

#[test]
fn clockbounds_segment_states_a_bound_that_grows_and_becomes_void() {
    let second = |s: u64| Timestamp::from_nanos(s * 1_000_000_000 + 500_000_000);
    for version in [1, 2] {
        let bound = |at: u64, status: u32| bound_of(&segment(version, status, 4), second(at));
        assert_eq!(bound(100, 1), Ok(Duration::from_micros(20)));
        assert_eq!(bound(110, 2), Ok(Duration::from_micros(30)), "10 s at 1 ppm");
        assert!(bound(1_100, 1).is_err_and(|why| why.contains("void")));
        assert!(bound(99, 1).is_err_and(|why| why.contains("in the future")));
        for status in [0, 3] {
            assert!(bound(100, status).is_err_and(|why| why.contains("does not know")));
        }
    }
    let whole = segment(2, 1, 4);
    for end in 0..72 {
        assert!(bound_of(&whole[..end], second(100)).is_err(), "{end} bytes");
    }
    assert!(bound_of(&segment(3, 1, 4), second(100)).is_err_and(|why| why.contains("version")));
    assert!(bound_of(&[b'x'; 80], second(100)).is_err());
}

/// The daemon, chrony and the card are not here. These files have the contents of real files.
#[test]
fn sources_that_are_not_here_are_read_as_their_makers_write_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shm0");
    let now = || Timestamp::from_nanos(100_500_000_000);
    std::fs::write(&path, segment(2, 1, 4)).unwrap();
    assert_eq!(clockbound::bound(&path, now).unwrap(), Duration::from_micros(20));
    std::fs::write(&path, segment(2, 1, 5)).unwrap();
    let error = clockbound::bound(&path, now).unwrap_err().to_string();
    assert!(error.contains("was changing it"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert!(clockbound::bound(&path, now).unwrap_err().to_string().contains("shm0"));

    let chronyc = dir.path().join("chronyc");
    let line = "A9FEA97B,169.254.169.123,4,1700000000.1,0.000001000,0.0,0.0,1.0,0.0,0.1,\
                0.000200000,0.000050000,16.0,Normal";
    let script = format!("#!/bin/sh\n[ \"$*\" = \"-c tracking\" ] && echo {line}\n");
    std::fs::write(&chronyc, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&chronyc, mode).unwrap();
    // Another test may start a process while the script is open, and the kernel then calls it busy.
    let busy = |error: &crate::Error| error.to_string().contains("busy");
    let bound = std::iter::repeat_with(|| chrony_bound(&chronyc))
        .find(|got| !got.as_ref().is_err_and(busy));
    assert_eq!(bound.unwrap().unwrap(), Duration::from_micros(151));
    assert!(chrony_bound(dir.path().join("none")).is_err());

    let card = dir.path().join("class/ptp/ptp0/device");
    std::fs::create_dir_all(&card).unwrap();
    std::fs::write(card.join("phc_error_bound"), "24000\n").unwrap();
    let bound = |name: &str| ptp_bound(dir.path(), std::path::Path::new(name));
    assert_eq!(bound("/dev/ptp0"), Some(Duration::from_micros(24)));
    assert_eq!(bound("/dev/ptp1"), None, "a card whose driver states nothing");
}
