//! What a measured run gives for the published curves: percentiles of every quantity that a figure
//! of Jasper shows.

use evenfall_campaigns::multicast::MessageCourse;

/// Receivers of which the delays of each message are kept. Published figures by receiver have 100.
const BY_RECEIVER_MAX: usize = 200;

/// A quantity of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FigureQuantity {
    /// Scheduled time to the arrival at the slowest receiver.
    Oml,
    /// Last arrival minus first.
    Window,
    /// As [`Oml`](Self::Oml), but up to the release, where a receiver that has the message in
    /// time is taken to release it exactly at its deadline. The published receivers set their time
    /// of release to the deadline.
    HeldOml,
    /// Last release minus first, with releases as for [`HeldOml`](Self::HeldOml).
    HeldWindow,
    /// As [`HeldOml`](Self::HeldOml), with the time at which each receiver did release.
    TrueHeldOml,
    /// As [`HeldWindow`](Self::HeldWindow), with the time at which each receiver did release.
    TrueHeldWindow,
    /// Mean over receivers of deadline minus arrival; nothing for a receiver that has it late.
    Hold,
    /// For each receiver this percentile of its delays, in ascending order.
    ByReceiver(u32),
}

/// One message, while its copies arrive.
#[derive(Clone, Copy)]
struct Message {
    scheduled: u64,
    deadline: Option<u64>,
    copies: u32,
    arrival: (u64, u64),
    release: (u64, u64),
    held_ns: u64,
}

/// The messages of a run.
#[derive(Default)]
pub struct MeasuredMessages {
    messages: Vec<Message>,
    /// Delays by receiver, nanoseconds.
    delays: Vec<Vec<u32>>,
    receivers: u32,
}

impl MeasuredMessages {
    /// Messages to so many receivers.
    pub fn to_receivers(receivers: u32) -> Self {
        let rows = if receivers as usize <= BY_RECEIVER_MAX { receivers } else { 0 };
        let delays = (0..rows).map(|_| Vec::new()).collect();
        Self { messages: Vec::new(), delays, receivers }
    }

    /// Takes in what a run tells.
    pub fn hear(&mut self, course: MessageCourse) {
        match course {
            MessageCourse::Sent { message, scheduled_ns, deadline_ns } => {
                debug_assert_eq!(message, self.messages.len() as u64, "one tree, in order");
                self.messages.push(Message {
                    scheduled: scheduled_ns,
                    deadline: deadline_ns,
                    copies: 0,
                    arrival: (u64::MAX, 0),
                    release: (u64::MAX, 0),
                    held_ns: 0,
                });
            }
            MessageCourse::Released { message, receiver, arrival_ns, release_ns, .. } => {
                let Some(known) = self.messages.get_mut(message as usize) else { return };
                let widen = |range: &mut (u64, u64), at: u64| {
                    *range = (range.0.min(at), range.1.max(at));
                };
                known.copies += 1;
                widen(&mut known.arrival, arrival_ns);
                widen(&mut known.release, release_ns);
                known.held_ns += known.deadline.map_or(0, |due| due.saturating_sub(arrival_ns));
                if let Some(delays) = self.delays.get_mut(receiver as usize) {
                    let delay = arrival_ns.saturating_sub(known.scheduled);
                    delays.push(u32::try_from(delay).unwrap_or(u32::MAX));
                }
            }
        }
    }

    /// Messages that every receiver has released.
    fn whole(&self) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(|message| message.copies == self.receivers)
    }

    /// Copies that were not released.
    pub fn missing(&self) -> u64 {
        self.messages.iter().map(|message| u64::from(self.receivers - message.copies)).sum()
    }

    /// Share of the messages that every receiver had by the deadline.
    pub fn p_f(&self) -> Option<f64> {
        let on_time = |message: &&Message| {
            message.copies == self.receivers
                && message.deadline.is_some_and(|due| message.arrival.1 <= due)
        };
        let held = self.messages.iter().filter(|message| message.deadline.is_some()).count();
        let in_time = self.messages.iter().filter(on_time).count();
        (held > 0).then(|| in_time as f64 / held as f64)
    }

    /// Values of a quantity in microseconds, ascending.
    pub fn values(&self, quantity: FigureQuantity) -> Vec<f64> {
        let us = |ns: u64| ns as f64 / 1e3;
        let due = |message: &Message| message.deadline.unwrap_or(0);
        let receivers = f64::from(self.receivers.max(1));
        let of = |message: &Message| {
            let (arrival, release) = (message.arrival, message.release);
            // The release of a receiver whose copy came at `at`, as published.
            let held = |at: u64| at.max(due(message));
            us(match quantity {
                FigureQuantity::Oml => arrival.1.saturating_sub(message.scheduled),
                FigureQuantity::Window => arrival.1 - arrival.0,
                FigureQuantity::HeldOml => held(arrival.1).saturating_sub(message.scheduled),
                FigureQuantity::HeldWindow => held(arrival.1) - held(arrival.0),
                FigureQuantity::TrueHeldOml => release.1.saturating_sub(message.scheduled),
                FigureQuantity::TrueHeldWindow => release.1 - release.0,
                FigureQuantity::Hold => return us(message.held_ns) / receivers,
                FigureQuantity::ByReceiver(_) => 0,
            })
        };
        let mut values: Vec<f64> = match quantity {
            FigureQuantity::ByReceiver(percent) => {
                self.delays.iter().filter_map(|delays| of_delays(delays, percent)).collect()
            }
            _ => self.whole().map(of).collect(),
        };
        values.sort_by(f64::total_cmp);
        values
    }
}

/// A percentile of nanoseconds, in microseconds.
fn of_delays(delays: &[u32], percent: u32) -> Option<f64> {
    let mut sorted = delays.to_vec();
    sorted.sort_unstable();
    rank(&sorted, percent).map(|&ns| f64::from(ns) / 1e3)
}

/// The percentile of sorted values by nearest rank.
pub fn rank<T>(sorted: &[T], percent: u32) -> Option<&T> {
    let at = (sorted.len() * percent as usize).div_ceil(100).max(1);
    sorted.get(at - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_time_has_no_window_as_published_and_its_true_one_as_released() {
        let mut messages = MeasuredMessages::to_receivers(2);
        messages.hear(MessageCourse::Sent {
            message: 0,
            scheduled_ns: 0,
            deadline_ns: Some(100_000),
        });
        for (receiver, arrival_ns, release_ns) in [(0, 40_000, 100_100), (1, 90_000, 101_600)] {
            let ahead_ns = 0;
            messages.hear(MessageCourse::Released {
                message: 0,
                receiver,
                arrival_ns,
                release_ns,
                ahead_ns,
            });
        }
        let one = |quantity| messages.values(quantity)[0];
        assert_eq!([one(FigureQuantity::Oml), one(FigureQuantity::Window)], [90.0, 50.0]);
        assert_eq!([one(FigureQuantity::HeldOml), one(FigureQuantity::HeldWindow)], [100.0, 0.0]);
        assert_eq!(
            [one(FigureQuantity::TrueHeldOml), one(FigureQuantity::TrueHeldWindow)],
            [101.6, 1.5]
        );
        assert_eq!(one(FigureQuantity::Hold), 35.0);
        assert_eq!(messages.values(FigureQuantity::ByReceiver(99)), [40.0, 90.0]);
        assert_eq!((messages.p_f(), messages.missing()), (Some(1.0), 0));
    }
}
