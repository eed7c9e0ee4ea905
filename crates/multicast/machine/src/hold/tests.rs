use super::*;
use evenfall_core::Prng;

fn control(rule: Rule) -> HoldControl {
    HoldControl::new(Deadline { rule, target: 0.99, ..Deadline::default() })
}

#[test]
fn every_latency_lies_just_below_the_edge_of_its_bucket() {
    for ns in (0..32).flat_map(|bit| [(1u32 << bit), (1 << bit) + (1 << bit) / 3, u32::MAX]) {
        let edge = upper_edge_ns(bucket(ns));
        assert!(edge >= ns, "{ns} above {edge}");
        let short = f64::from(ns.max(FLOOR_NS));
        assert!(f64::from(edge) <= short * 1.008 + 1.0, "{ns}: {edge}");
    }
}

#[test]
fn on_time_reaches_its_target_on_what_it_has_not_seen() {
    let mut control = control(Rule::OnTime);
    let mut prng = Prng::new(1);
    let mut draw = move || (100_000.0 + prng.exponential(30_000.0)) as u32;
    let mut now = Timestamp::ZERO;
    let (mut late, mut total) = (0, 0);
    for round in 0..2_000 {
        now += Duration::from_millis(50);
        for _ in 0..10 {
            let oml = draw();
            if round > 200 {
                total += 1;
                late += u32::from(u64::from(oml) > control.hold().as_nanos() as u64);
            }
            let is_late = u64::from(oml) > control.hold().as_nanos() as u64;
            control.observe(now, 0, oml, 1, Some(is_late));
        }
        control.update(now, 0);
    }
    let share = f64::from(late) / f64::from(total);
    assert!((0.005..0.015).contains(&share), "{share}");
}

#[test]
fn runs_of_late_frames_do_not_break_the_promise() {
    let mut control = control(Rule::OnTime);
    let mut prng = Prng::new(2);
    let mut now = Timestamp::ZERO;
    let (mut late, mut total, mut slow) = (0, 0, 0);
    for round in 0..20_000 {
        now += Duration::from_millis(50);
        for _ in 0..10 {
            // A stall about every second makes twenty frames in a row slow.
            slow = if prng.chance(0.005) { 20 } else { slow - i32::from(slow > 0) };
            let extra = if slow > 0 { prng.exponential(1e6) } else { 0.0 };
            let oml = (100_000.0 + prng.exponential(30_000.0) + extra) as u32;
            let is_late = u64::from(oml) > control.hold().as_nanos() as u64;
            control.observe(now, 0, oml, 1, Some(is_late));
            if round > 1_000 {
                total += 1;
                late += u32::from(is_late);
            }
        }
        control.update(now, 0);
    }
    let share = f64::from(late) / f64::from(total);
    assert!((0.005..0.011).contains(&share), "{share}");
}

#[test]
fn the_cap_bounds_what_a_straggler_costs() {
    let mut control = control(Rule::OnTime);
    let mut now = Timestamp::ZERO;
    for ms in 0..9_000 {
        now = Timestamp::from_nanos(ms * 1_000_000);
        control.observe(now, 0, 100_000, 1, None);
    }
    control.update(now, 0);
    let hold = control.hold();
    assert!((100_000..101_000).contains(&hold.as_nanos()), "{hold:?}");
    for _ in 0..300 {
        now += Duration::from_millis(1);
        control.observe(now, 0, 500_000_000, 1, None);
    }
    control.update(now, 0);
    assert_eq!(control.hold(), Deadline::default().hold_max);
}

#[test]
fn a_frame_in_a_burst_is_held_for_bursts_and_a_quiet_one_is_not() {
    let mut control = control(Rule::OnTime);
    let mut prng = Prng::new(3);
    let mut now = Timestamp::from_nanos(1);
    let (mut late, mut total, mut quiet) = (0, 0, Duration::ZERO);
    for round in 0..4_000 {
        now += Duration::from_millis(50);
        // One round in ten is a burst of ten frames at once. Each frame is 50 us behind the
        // previous frame.
        let burst = if round % 10 == 0 { 10 } else { 1 };
        for behind in 0..burst {
            let (hold, class) = control.next(now);
            let oml = 100_000.0 + 50_000.0 * f64::from(behind) + prng.exponential(10_000.0);
            let is_late = oml > hold.as_nanos() as f64;
            control.observe(now, class, oml as u32, 1, Some(is_late));
            if round > 1_000 {
                total += 1;
                late += u32::from(is_late);
                quiet = if burst == 1 { hold } else { quiet };
            }
        }
        control.update(now, 0);
    }
    let share = f64::from(late) / f64::from(total);
    assert!(share < 0.015, "{share}");
    assert!(quiet < Duration::from_micros(250), "{quiet:?}");
    let (_, alone) = control.next(now + Duration::from_secs(1));
    let after = core::iter::repeat_with(|| control.next(now + Duration::from_secs(1)).1);
    let burst: Vec<LoadClass> = after.take(3).collect();
    assert!(alone == 0 && burst == [1, 1, 2], "{alone} {burst:?}");
}

#[test]
fn slow_first_messages_do_not_lengthen_the_hold_of_a_steady_feed() {
    let mut control = control(Rule::OnTime);
    let mut prng = Prng::new(4);
    let mut now = Timestamp::from_nanos(1);
    for message in 0..50_000 {
        now += Duration::from_micros(200);
        let (_, class) = control.next(now);
        let slow = if message < 3 { 1_000_000.0 } else { 0.0 };
        control.observe(
            now,
            class,
            (100_000.0 + slow + prng.exponential(10_000.0)) as u32,
            1,
            None,
        );
        if message % 250 == 0 {
            control.update(now, 0);
        }
    }
    let hold = control.hold();
    assert!((140_000..150_000).contains(&hold.as_nanos()), "{hold:?}");
}

/// Frames at the default rate of samples, with the latencies of `took`, in nanoseconds. Returns
/// how many are late.
fn send(
    control: &mut HoldControl,
    now: &mut Timestamp,
    frames: u32,
    mut took: impl FnMut() -> f64,
) -> u32 {
    let mut late_frames = 0;
    for _ in 0..frames {
        *now += Duration::from_micros(500);
        let oml = took() as u32;
        let late = u128::from(oml) > control.hold().as_nanos();
        late_frames += u32::from(late);
        control.observe(*now, 0, oml, 1, Some(late));
        if now.nanos().is_multiple_of(50_000_000) {
            control.update(*now, 0);
        }
    }
    late_frames
}

#[test]
fn a_stall_that_is_over_does_not_lengthen_the_hold() {
    let mut control = control(Rule::OnTime);
    let (mut prng, mut now) = (Prng::new(5), Timestamp::ZERO);
    let mut draw = move || 100_000.0 + prng.exponential(10_000.0);
    send(&mut control, &mut now, 2_000, &mut draw);
    let before = control.hold();
    // In a pause of 20 ms each frame waits for the end of the pause.
    let mut left = 20_500_000.0;
    let pause = || {
        left -= 500_000.0;
        left
    };
    assert_eq!(send(&mut control, &mut now, 40, pause), 40);
    send(&mut control, &mut now, 60, &mut draw);
    let after = control.hold();
    assert!(after < before * 3 / 2, "{before:?}, then {after:?}");
}

#[test]
fn pauses_that_come_every_second_are_covered() {
    let mut control = control(Rule::OnTime);
    let (mut prng, mut now, mut frame) = (Prng::new(7), Timestamp::ZERO, 0);
    // Thirty milliseconds of every second, which are three times the share that may be late.
    let mut draw = move || {
        frame += 1;
        let pause = 30_000_000.0 - 500_000.0 * f64::from(frame % 2_000);
        100_000.0 + prng.exponential(10_000.0) + pause.max(0.0)
    };
    send(&mut control, &mut now, 40_000, &mut draw);
    let late = send(&mut control, &mut now, 40_000, &mut draw);
    assert!(late < 700, "{late} of 40,000 frames are late");
}

#[test]
fn stalls_whose_latencies_rise_do_not_set_the_hold() {
    let mut control = control(Rule::OnTime);
    let (mut prng, mut now, mut frame) = (Prng::new(8), Timestamp::ZERO, 0);
    // A queue fills for 30 ms every two seconds. Each frame waits longer than the frame before it.
    let mut draw = move || {
        frame += 1;
        let filled = frame % 4_000;
        let queue = if filled < 60 { 500_000.0 * f64::from(filled) } else { 0.0 };
        100_000.0 + prng.exponential(10_000.0) + queue
    };
    // The run ends half a second after the queue was last full.
    send(&mut control, &mut now, 81_000, &mut draw);
    assert!(control.hold() < Duration::from_micros(500), "{:?}", control.hold());
}

#[test]
fn a_path_that_stays_slow_is_followed() {
    let mut control = control(Rule::OnTime);
    let (mut prng, mut now) = (Prng::new(6), Timestamp::ZERO);
    let mut draw = move |base| base + prng.exponential(10_000.0);
    send(&mut control, &mut now, 20_000, || draw(100_000.0));
    let at_first = send(&mut control, &mut now, 1_000, || draw(300_000.0));
    assert!(at_first < 500, "{at_first} of the first 1,000 frames are late");
    let late = send(&mut control, &mut now, 20_000, || draw(300_000.0));
    assert!(late < 300, "{late} of 20,000 frames are late");
    assert!(control.hold() < Duration::from_micros(400), "{:?}", control.hold());
}

#[test]
fn jaspers_rule_follows_the_largest_95th_percentile() {
    let mut control = control(Rule::MaxP95);
    control.update(Timestamp::ZERO, 0);
    assert_eq!(control.hold(), Deadline::default().hold_initial);
    control.update(Timestamp::ZERO, 130_000);
    assert_eq!(control.hold(), Duration::from_micros(130));
}
