//! What the host tells about the port of a role: the kind of the port, and the packets that the
//! network card or the cloud lost.
//!
//! Frames that are repaired were lost on the way, and the counters of the roles do not say by
//! whom. With the card's counters beside them, losses beyond an allowance of the cloud are told
//! from losses of this host. The thread of the pages asks the driver when somebody reads them, so
//! that the thread of the role never waits for a driver.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use evenfall_core::Timestamp;
use evenfall_host::clock::MonotonicClock;
use evenfall_host::losses::{CardLoss, LossReader};

use crate::telemetry::Metrics;

/// How long an answer of the driver is used again. A client that reads the pages in a loop then
/// causes one question to the driver a second. Some drivers ask the card before they answer.
const FRESH: Duration = Duration::from_secs(1);

/// The card of a node, as the pages tell it.
pub(crate) struct HostMetrics {
    kind: &'static str,
    /// `None` for loopback, and where this process may not ask.
    card: Option<LossReader>,
    last: Mutex<Option<(Timestamp, Vec<CardLoss>)>>,
}

impl HostMetrics {
    /// The metrics of a node with a port of this kind at this address.
    pub(crate) fn new(kind: &'static str, address: IpAddr) -> Self {
        let card = LossReader::for_address(address).ok().flatten();
        Self { kind, card, last: Mutex::new(None) }
    }

    /// Adds the metrics. The driver is asked, unless it was asked a moment ago.
    pub(crate) fn put_metrics(&self, m: &mut Metrics) {
        let help = "The kind of port that moves the datagrams of the role.";
        m.put_labelled("gauge", "port_info", help, &[("kind", self.kind)], 1);
        let Some(card) = &self.card else { return };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = MonotonicClock::now();
        let known = last.take().filter(|(at, _)| now.since(*at) < FRESH);
        let (at, losses) = known.unwrap_or_else(|| (now, card.read_losses()));
        let help = "Packets that the card lost, or that the cloud's allowances cost.";
        for CardLoss { counter, cause, packets } in &losses {
            let own = [("card", card.interface()), ("cause", cause.word()), ("counter", counter)];
            m.put_labelled("counter", "card_lost_packets_total", help, &own, *packets);
        }
        *last = Some((at, losses));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use evenfall_host::lab::Lab;

    use super::*;

    fn text(address: IpAddr) -> String {
        let mut metrics = Metrics::of("proxy-1", "proxy");
        HostMetrics::new("tc", address).put_metrics(&mut metrics);
        metrics.text()
    }

    #[test]
    fn a_node_on_loopback_has_a_kind_of_port_and_no_card() {
        let text = text(Ipv4Addr::LOCALHOST.into());
        let line = "evenfall_port_info{node=\"proxy-1\",role=\"proxy\",kind=\"tc\"} 1";
        assert!(text.lines().any(|known| known == line), "{text}");
        assert!(!text.contains("card_lost"), "{text}");
    }

    #[test]
    fn the_card_of_a_host_tells_who_lost_packets() {
        let Ok(lab) = Lab::new(2).inspect_err(|error| println!("skipped: hosts: {error}")) else {
            return;
        };
        let address = lab.address(0).into();
        let text = lab.within(0, || text(address)).unwrap();
        let lines =
            text.lines().filter(|line| line.starts_with("evenfall_card_lost_packets_total{"));
        let of_card = lines.filter(|line| line.contains("cause=\"card\",counter=\"rx_drops\"}"));
        assert_eq!(of_card.count(), 1, "{text}");
        assert_eq!(text.matches("# TYPE evenfall_card_lost_packets_total counter").count(), 1);
    }
}
