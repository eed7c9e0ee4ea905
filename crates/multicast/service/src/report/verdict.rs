//! The first sentence of a report: whether the run was fair, to how many receivers, and where it
//! was worst. The page, the terminal and the demonstration all print these words.

use evenfall_core::{ClockError, Summary, math};
use evenfall_multicast_report::{LedgerOutcome, ReceiverLine};
use serde::Serialize;

use super::{NodeInfo, Report};

/// Share of messages on time at every receiver from which a run is called fair: 99 %, a little
/// below the default target of the deadline rule, so that a run by default settings is fair.
const FAIR_SHARE_MIN: f64 = 0.99;
/// Share below which a run is called unfair: one message in ten was late at some receiver. The
/// shares between are called "nearly fair".
const UNFAIR_SHARE_MAX: f64 = 0.90;

/// The quality of a run, for the colour of its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mood {
    /// The run was fair.
    Good,
    /// The run held no message, sent nothing, or was nearly fair.
    Mixed,
    /// The run was unfair.
    Bad,
}

/// The verdict as a sentence with its figures, for example:
///
/// `Fair: 99.55 % of messages reached all 10 receivers before their deadline; worst receiver-10 (no
/// copy lost, p99 delay 212 us). The first and the last release of a message were 3.1 us apart
/// (median); its arrivals were 84.0 us apart (median).`
pub fn sentence(report: &Report) -> String {
    let results = &report.outcome.results;
    let receivers = match results.receivers {
        1 => "the only receiver".to_owned(),
        count => format!("all {} receivers", whole(count)),
    };
    if results.messages == 0 || results.delivered == 0 && results.lost == 0 {
        return "Nothing to judge: no message was sent to a receiver.".to_owned();
    }
    let worst = worst(&report.outcome, &report.info.nodes);
    let Some(share) = results.p_f else {
        let lost = match results.lost {
            0 => "no copy was lost".to_owned(),
            lost => format!("{} copies were lost", whole(lost)),
        };
        return format!(
            "Not held: receivers acted on messages as they came, and {lost}{worst}.{}",
            windows(report)
        );
    };
    let word = match mood(report) {
        Mood::Good => "Fair",
        Mood::Mixed => "Nearly fair",
        Mood::Bad => "Unfair",
    };
    format!(
        "{word}: {} of messages reached {receivers} before their deadline{worst}.{}",
        percent(share),
        windows(report)
    )
}

/// The colour of the verdict.
pub fn mood(report: &Report) -> Mood {
    match report.outcome.results.p_f {
        Some(share) if share >= FAIR_SHARE_MIN => Mood::Good,
        Some(share) if share < UNFAIR_SHARE_MAX => Mood::Bad,
        _ => Mood::Mixed,
    }
}

/// The receiver that lost most messages. Of receivers with equal losses, the slowest.
fn worst(outcome: &LedgerOutcome, nodes: &[NodeInfo]) -> String {
    let lines = &outcome.series.receivers;
    let rank = |a: &&ReceiverLine, b: &&ReceiverLine| {
        a.lost.cmp(&b.lost).then(a.delay_p99_us.total_cmp(&b.delay_p99_us))
    };
    let Some(line) = lines.iter().max_by(rank).filter(|_| lines.len() > 1) else {
        return String::new();
    };
    let name = nodes.iter().find(|node| node.id == line.receiver);
    let name = name.map_or_else(|| line.receiver.to_string(), |node| node.name.clone());
    let lost = match line.lost {
        0 => "no copy lost".to_owned(),
        lost => format!("{} of {} copies lost", whole(lost), whole(lost + line.delivered)),
    };
    format!("; worst {name} ({lost}, p99 delay {})", microseconds(line.delay_p99_us))
}

/// How far apart the releases at different receivers were, and how far apart the arrivals.
fn windows(report: &Report) -> String {
    let results = &report.outcome.results;
    if results.receivers < 2 || results.arrival_window_us == Summary::EMPTY {
        return String::new();
    }
    let arrived = microseconds(results.arrival_window_us.p50);
    let arrived_between = limits(results.arrival_window_between_us.p50);
    let clock = match results.clock_error_us.0 {
        ClockError::Unknown | ClockError::Disproved => " The clocks' error is unknown.",
        _ => "",
    };
    if results.p_f.is_none() {
        return format!(
            " The first and the last arrival of a message were {arrived} apart \
             (median{arrived_between}).{clock}"
        );
    }
    let held = microseconds(results.window_us.p50);
    let held_between = limits(results.window_between_us.p50);
    format!(
        " The first and the last release of a message were {held} apart (median{held_between}); \
         its arrivals were {arrived} apart (median{arrived_between}).{clock}"
    )
}

/// The limits of the true window by the errors of the clocks, as words. Empty where all receivers
/// share a clock, or where a clock states no bound.
fn limits([least, most]: [f64; 2]) -> String {
    if least == most || most.is_infinite() {
        return String::new();
    }
    let (least, most) = (microseconds(least), microseconds(most));
    format!("; between {least} and {most} with the errors of the clocks")
}

/// A share in per cent, with the two digits that tell it from 100 %. The share is rounded down, so
/// 100 % means every message.
fn percent(share: f64) -> String {
    if share >= 1.0 {
        return "100 %".to_owned();
    }
    let nines = -math::log10(1.0 - share);
    let places = (nines.floor() as i32).clamp(1, 6);
    let scale = 10u64.pow(places as u32 + 2) as f64;
    // As a float, a share such as 0.95 is a little smaller. The added billionth is less than one
    // message of any run.
    let down = (share * scale + 1e-9 * scale).floor() / scale * 100.0;
    format!("{down:.*} %", places.max(1) as usize)
}

/// A number with a comma before every three digits, as on the page.
fn whole(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|g| str::from_utf8(g).ok()).collect();
    groups.join(",")
}

fn microseconds(us: f64) -> String {
    match us.abs() {
        size if size.is_nan() => "unknown".to_owned(),
        size if size >= 1e6 => format!("{:.2} s", us / 1e6),
        size if size >= 1e4 => format!("{:.1} ms", us / 1e3),
        size if size >= 100.0 => format!("{us:.0} us"),
        _ => format!("{us:.1} us"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenfall_core::NodeId;
    use evenfall_multicast_report::{Config, Ledger, Released, SentMessage};

    use super::*;
    use crate::report::RunInfo;

    /// `messages` messages to receivers 1 to `receivers`. The last receiver gets `late` of them
    /// late and `lost` of them never.
    fn run(receivers: u32, messages: u64, late: u64, lost: u64, hold_ns: u64) -> Report {
        let clock = ClockError::SameClock;
        run_by(clock, receivers, messages, (late, lost), hold_ns)
    }

    /// The report of the same run, when each receiver's clock has the error `clock`.
    fn run_by(
        clock: ClockError,
        receivers: u32,
        messages: u64,
        (late, lost): (u64, u64),
        hold_ns: u64,
    ) -> Report {
        let ids: Vec<NodeId> = (1..=receivers).map(NodeId).collect();
        let mut ledger = Ledger::new(Config::of(ids.iter().copied()));
        ids.iter().for_each(|id| ledger.clock(*id, clock));
        for message in 0..messages {
            let sent_ns = 1_000_000 * (message + 1);
            let deadline_ns = (hold_ns > 0).then_some(sent_ns + hold_ns);
            let sent =
                SentMessage { message, scheduled_ns: sent_ns, sent_ns, deadline_ns, stream: 0 };
            ledger.sent(&sent);
            for &receiver in &ids {
                let is_last = receiver.0 == receivers;
                if is_last && message < lost {
                    continue;
                }
                let is_late = is_last && message < lost + late;
                let delay_ns = 50_000 + 10_000 * u64::from(receiver.0);
                let arrival_ns = sent_ns + if is_late { 2 * hold_ns } else { delay_ns };
                let release_ns = arrival_ns.max(deadline_ns.unwrap_or(0));
                ledger.released(&Released {
                    receiver,
                    first_message: message,
                    count: 1,
                    arrival_ns,
                    release_ns,
                    ..Released::default()
                });
            }
        }
        ledger.close_all();
        let outcome = ledger.finish(clock);
        let node = |id: &NodeId| NodeInfo {
            id: *id,
            name: format!("receiver-{}", id.0),
            role: "receiver".to_owned(),
        };
        let info = RunInfo { nodes: ids.iter().map(node).collect(), ..RunInfo::default() };
        let (logs, memory, warnings) = (Vec::new(), Vec::new(), Vec::new());
        Report { info, outcome, logs, memory, clocks: vec![], warnings }
    }

    #[test]
    fn fair_run_says_to_how_many_and_who_was_worst() {
        let report = run(10, 2_000, 9, 0, 200_000);
        assert_eq!(
            sentence(&report),
            "Fair: 99.55 % of messages reached all 10 receivers before their deadline; worst \
             receiver-10 (no copy lost, p99 delay 152 us). The first and the last release of a \
             message were 0.0 us apart (median); its arrivals were 90.0 us apart (median)."
        );
        assert_eq!(mood(&report), Mood::Good);
    }

    #[test]
    fn errors_of_clocks_widen_the_time_between_receivers_to_an_interval() {
        let within = ClockError::Within(Duration::from_micros(2));
        let said = sentence(&run_by(within, 10, 2_000, (9, 0), 200_000));
        let wanted = "were 0.0 us apart (median; between 0.0 us and 4.0 us with the errors of \
                      the clocks); its arrivals were 90.0 us apart (median; between 86.0 us and \
                      94.0 us with the errors of the clocks).";
        assert!(said.ends_with(wanted), "{said}");
        let said = sentence(&run_by(ClockError::Unknown, 10, 2_000, (9, 0), 200_000));
        assert!(said.ends_with("90.0 us apart (median). The clocks' error is unknown."), "{said}");
    }

    #[test]
    fn unfair_run_is_called_unfair_and_names_the_receiver_that_lost() {
        let report = run(3, 100, 10, 5, 200_000);
        let said = sentence(&report);
        assert!(said.starts_with("Unfair: 85.0 % of messages reached all 3 receivers"), "{said}");
        assert!(said.contains("worst receiver-3 (5 of 100 copies lost"), "{said}");
        assert_eq!(mood(&report), Mood::Bad);
        assert_eq!(mood(&run(3, 100, 5, 0, 200_000)), Mood::Mixed);
    }

    #[test]
    fn run_that_holds_nothing_is_not_called_fair() {
        let said = sentence(&run(4, 100, 0, 0, 0));
        assert!(said.starts_with("Not held: receivers acted on messages as they came"), "{said}");
        assert!(said.ends_with("arrival of a message were 30.0 us apart (median)."), "{said}");
        let said = sentence(&run(0, 0, 0, 0, 0));
        assert!(said.starts_with("Nothing to judge"), "{said}");
        let said = sentence(&run(1, 100, 0, 0, 200_000));
        assert_eq!(
            said,
            "Fair: 100 % of messages reached the only receiver before their deadline."
        );
    }

    #[test]
    fn large_numbers_have_commas() {
        assert_eq!([0, 999, 5_000, 1_234_567].map(whole), ["0", "999", "5,000", "1,234,567"]);
    }

    #[test]
    fn hundred_per_cent_is_every_message() {
        let shares = [1.0, 0.999_999_9, 0.9955, 0.95, 0.9, 0.5, 0.0];
        let words = ["100 %", "99.999990 %", "99.55 %", "95.0 %", "90.0 %", "50.0 %", "0.0 %"];
        assert_eq!(shares.map(percent), words);
    }
}
