use std::time::Duration;

use evenfall_core::ClockError;

use super::sources::{bound_of_timex, root_distance};
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
