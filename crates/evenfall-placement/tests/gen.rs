//! x
use evenfall_placement::survey::{wire::*, job::{Task, Seat}, probe::Probe, *};
use evenfall_core::*;
#[test]
fn gen_seeds() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/");
    let put = |name: &str, bytes: &[u8]| std::fs::write(format!("{dir}{name}"), bytes).unwrap();
    let host = |i: u8| std::net::SocketAddr::from(([10, 0, 0, i], 9400));
    let spec = JobSpec::multicast((0..3).collect(), 2, Pace::default());
    let seat = |place: u16| Seat { place, address: host(place as u8 + 1) };
    let task = |p: u16| Task { above: 0, seats: if p == 0 { (0..3).map(seat).collect() } else { vec![seat(p)] }, mesh: vec![], kind: spec.kind, fanout: 2, pace: spec.pace, timing: Timing::default() };
    let m = |body| Message { run: 9, job: 1, body }.encode(None);
    let all = [("hello", m(Body::Hello)), ("task", m(Body::Task(task(0)))), ("task_leaf", m(Body::Task(task(1)))), ("go", m(Body::Go)), ("poll", m(Body::Poll(0))),
        ("welcome", m(Body::Welcome { software: "evenfall".into(), clock: ClockError::Unknown })),
        ("release", m(Body::Release)), ("status", m(Body::Status { phase: Phase::Done, parts: 1, progress: 7 })),
        ("part", m(Body::Part { index: 0, entries: vec![Entry::Sent { from: 0, to: 1, count: 5 }] }))];
    for (n, b) in &all { put(&format!("survey_wire/{n}"), b); }
    let p = Probe { warm_up: false, from: 0, run: 9, job: 1, sequence: 4, origin: SyncTime::from_nanos(5), sent: SyncTime::from_nanos(6), origin_error: ClockError::SameClock, sent_error: ClockError::Unknown };
    put("survey_wire/probe", &p.encode(None));
    for (n, seq) in [("leaf", vec![(0x01u8, 2usize), (0x05, 4), (0x05, 3), (0xff, 4), (0x05, 6)]), ("leader", vec![(1, 0), (1, 1), (5, 4), (9, 3), (0xfd, 4), (0xfd, 4)])] {
        let mut out = vec![];
        for (who, at) in seq { let b = &all[at].1; out.extend([who, b.len() as u8]); out.extend_from_slice(b); }
        out.extend([1, 72]); out.extend_from_slice(&p.encode(None));
        put(&format!("survey_agent/{n}"), &out);
    }
    for (n, at) in [("hello", 0), ("task", 1)] {
        let b = &all[at].1;
        let mut out = vec![10, b.len() as u8]; out.extend_from_slice(b);
        put(&format!("agent_call/{n}"), &out);
    }
}
