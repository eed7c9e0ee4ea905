//! `evenfall demo --trading`: four participants trade on the feed, and their shares of the profit
//! show whom the delivery favours (Jasper, section 8.4 and appendix C).
//!
//! ```text
//!  root --> proxies --> receiver-1  --+   order: trade 17, stamped .000145
//!                       receiver-2  --+-> exchange, a thread of the demo: the earliest stamp of
//!                       receiver-19 --+   each trade is filled
//!                       receiver-20 --+
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`order`] | the bytes of an order |
//! | [`participant`] | the process that places orders |
//! | [`collection`] | the orders of each trade, and the datagrams that are refused |
//! | [`exchange`] | the thread that collects, and the filling |
//! | [`outcome`] | the figures |
//!
//! Loopback has no network, so that the paths to all receivers are equally long. The demo therefore
//! delays the datagrams to two of five receivers by 100 us and 300 us, as `--compare` does.

mod collection;
mod exchange;
mod order;
mod outcome;
mod participant;

use std::fs;
use std::time::Duration;

use bytes::BytesMut;
use clap::ValueEnum;
use evenfall_feed_formats::framed::{write_end, write_frame};
use evenfall_feed_formats::synthetic::trades::DemoTrade;
use evenfall_multicast_report::market::{PARTICIPANTS, StampConduct, find_participants};
use evenfall_multicast_service::settings::steps_file;

use super::Args;
use super::folder::TRADES_FILE;
pub use exchange::Exchange;
pub use outcome::TradingOutcome;
pub use participant::{ParticipantSeat, take_part};

/// Most trades of a demo: 46 MB of feed, which is made in memory.
const TRADES_MAX: u64 = 1_000_000;
/// The longest error of a participant's clock. The root gives a receiver up whose clock is further
/// away than its patience.
const CLOCK_ERROR_MAX: Duration = Duration::from_secs(1);

/// Which stamps the exchange accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum StampRule {
    /// Every stamp.
    #[default]
    Participant,
    /// Stamps from the deadline of the message on. Earlier orders are refused.
    NotEarly,
}

/// An error that is planted in the clock of a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockMistake {
    seat: usize,
    by: Duration,
}

/// The arguments of trading.
#[derive(clap::Args, Clone, Debug)]
pub struct TradingArgs {
    /// Let the first two and the last two receivers trade: the feed is a series of trades, a
    /// participant places an order for each trade above a price, stamped by its own clock, and the
    /// exchange fills the earliest stamp. The shares of the profit show whom the delivery favours.
    /// The paths to two of five receivers are made 100 us and 300 us longer, as for --compare.
    #[arg(
        long,
        conflicts_with_all = ["feed", "lab", "trees", "gateway", "plant_clocks"]
    )]
    trading: bool,
    /// Which stamps the exchange accepts.
    #[arg(
        long,
        value_enum,
        value_name = "RULE",
        default_value = "participant",
        requires = "trading"
    )]
    stamps: StampRule,
    /// A participant whose clock is ahead, such as 1=100us. The participant releases and stamps by
    /// that clock. May be repeated.
    #[arg(long, value_name = "1-4=DURATION", value_parser = parse_clock, requires = "trading")]
    clock_ahead: Vec<ClockMistake>,
    /// A participant whose clock is behind, such as 1=100us. The participant releases and stamps by
    /// that clock. A receiver does not believe a clock that is more than 10ms behind, and releases
    /// each message the length of the hold after its arrival. May be repeated.
    #[arg(long, value_name = "1-4=DURATION", value_parser = parse_clock, requires = "trading")]
    clock_behind: Vec<ClockMistake>,
    /// A participant that stamps its orders with the arrival of the message, as if it had not held
    /// the message. May be repeated.
    #[arg(long, value_name = "1-4", value_parser = parse_seat, requires = "trading")]
    opens_early: Vec<usize>,
    /// A participant that writes the deadline as its stamp when its stamp would be earlier. May be
    /// repeated.
    #[arg(long, value_name = "1-4", value_parser = parse_seat, requires = "trading")]
    writes_deadline: Vec<usize>,
}

/// The seat of the participant with this number.
fn parse_seat(text: &str) -> Result<usize, String> {
    let number: Option<usize> =
        text.parse().ok().filter(|number| (1..=PARTICIPANTS).contains(number));
    number.map(|number| number - 1).ok_or_else(|| format!("a participant from 1 to {PARTICIPANTS}"))
}

fn parse_clock(text: &str) -> Result<ClockMistake, String> {
    let (whose, by) =
        text.split_once('=').ok_or("a participant and a duration, such as 1=100us")?;
    let by = humantime::parse_duration(by).map_err(|error| error.to_string())?;
    if by > CLOCK_ERROR_MAX {
        return Err("the error of a clock is at most 1s".into());
    }
    Ok(ClockMistake { seat: parse_seat(whose)?, by })
}

impl TradingArgs {
    /// Whether participants trade.
    pub fn is_on(&self) -> bool {
        self.trading
    }

    /// Whether any participant has a wrong clock.
    pub fn plants_clock_errors(&self) -> bool {
        !self.clock_ahead.is_empty() || !self.clock_behind.is_empty()
    }

    /// How far the clock of a participant is ahead, in nanoseconds.
    fn ahead_ns(&self, seat: usize) -> i64 {
        let sum = |mistakes: &[ClockMistake]| {
            let of_seat = mistakes.iter().filter(|mistake| mistake.seat == seat);
            of_seat.map(|mistake| mistake.by.as_nanos() as i64).sum::<i64>()
        };
        sum(&self.clock_ahead) - sum(&self.clock_behind)
    }

    fn conduct_of(&self, seat: usize) -> StampConduct {
        StampConduct {
            opens_early: self.opens_early.contains(&seat),
            writes_deadline: self.writes_deadline.contains(&seat),
        }
    }
}

/// The names of the receivers that trade.
fn name_participants(receivers: u32) -> [String; PARTICIPANTS] {
    find_participants(receivers).map(|place| format!("receiver-{}", place + 1))
}

/// The seat of the receiver with this name; `None` for a receiver that does not trade.
fn seat_of(receivers: u32, name: &str) -> Option<usize> {
    name_participants(receivers).iter().position(|known| known == name)
}

/// Checks the arguments, and makes the feed of trades.
///
/// # Errors
/// When there are too few receivers or too many trades, or the feed cannot be written.
pub fn prepare_feed(args: Args) -> Result<Args, String> {
    if !args.trading.is_on() {
        return Ok(args);
    }
    if (args.receivers as usize) < PARTICIPANTS {
        let receivers = args.receivers;
        return Err(format!(
            "--trading: {receivers} receivers are too few for {PARTICIPANTS} participants; give \
             --receivers {PARTICIPANTS} or more"
        ));
    }
    if !(1..=TRADES_MAX).contains(&args.messages) {
        let messages = args.messages;
        return Err(format!("--messages {messages}: trading takes 1 to {TRADES_MAX} trades"));
    }
    let path = args.dir.join(TRADES_FILE);
    let (mut bytes, mut message) = (Vec::new(), BytesMut::new());
    for number in 0..args.messages {
        message.clear();
        DemoTrade::of(args.seed, number).encode_into(number, &mut message);
        write_frame(&mut bytes, &message);
    }
    write_end(&mut bytes);
    fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Args { feed: Some(path), ..args })
}

/// Makes the clocks of the participants wrong that the arguments name. A process reads its file
/// before it first reads its clock, so that the clock never steps.
///
/// # Errors
/// When a file cannot be written.
pub fn plant_clock_errors(args: &Args) -> Result<(), String> {
    if !args.trading.plants_clock_errors() {
        return Ok(());
    }
    for (seat, name) in name_participants(args.receivers).iter().enumerate() {
        let ahead_ns = args.trading.ahead_ns(seat);
        if ahead_ns != 0 {
            let file = args.dir.join(steps_file(name));
            fs::write(&file, ahead_ns.to_string())
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Demo {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, String> {
        let words = ["demo"].iter().chain(words);
        Demo::try_parse_from(words).map(|demo| demo.args).map_err(|error| error.to_string())
    }

    #[test]
    fn first_two_and_last_two_receivers_take_part_and_nobody_else() {
        assert_eq!(name_participants(4).map(|name| seat_of(4, &name)), [0, 1, 2, 3].map(Some));
        assert_eq!((seat_of(20, "receiver-19"), seat_of(20, "receiver-3")), (Some(2), None));
        assert_eq!(seat_of(20, "proxy-1"), None);
    }

    #[test]
    fn wrong_arguments_are_refused_with_what_is_right() {
        for (words, wanted) in [
            (&["--trading", "--feed", "a"][..], "--feed"),
            (&["--trading", "--lab"], "--lab"),
            (&["--stamps", "not-early"], "--trading"),
            (&["--clock-ahead", "1=5us"], "--trading"),
            (&["--trading", "--clock-ahead", "5=5us"], "from 1 to 4"),
            (&["--trading", "--clock-behind", "5us"], "1=100us"),
            (&["--trading", "--clock-behind", "1=2s"], "at most 1s"),
            (&["--trading", "--opens-early", "0"], "from 1 to 4"),
        ] {
            let said = parse(words).unwrap_err();
            assert!(said.contains(wanted), "{words:?}: {said}");
        }
        for (words, wanted) in [
            (&["--trading", "--receivers", "3"][..], "--receivers 4 or more"),
            (&["--trading", "--messages", "1000001"], "1 to 1000000"),
        ] {
            let said = prepare_feed(parse(words).unwrap()).unwrap_err();
            assert!(said.contains(wanted), "{words:?}: {said}");
        }
    }

    #[test]
    fn errors_of_one_clock_add_up_and_other_clocks_are_right() {
        let words = ["--trading", "--clock-ahead", "2=5us", "--clock-behind", "2=7us"];
        let args = parse(&words).unwrap().trading;
        assert_eq!([0, 1, 2, 3].map(|seat| args.ahead_ns(seat)), [0, -2_000, 0, 0]);
    }
}
