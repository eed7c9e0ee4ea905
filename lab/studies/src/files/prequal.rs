//! The rival Prequal (Wydrowski and others, NSDI 2024). A server tells a client how many requests
//! it has in flight, and how long requests took at about that number. Clients keep the answers and
//! use them again.
//!
//! A server with more requests in flight than a high quantile of the known answers is hot. The
//! client takes the fastest cold server. When all servers are hot, the client takes the server with
//! the fewest requests in flight. The paper probes servers at random, because any of its servers
//! can answer. Here only three hosts have the file, so a client without a fresh answer of a copy
//! asks that copy.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use evenfall_core::{Prng, Timestamp};
use evenfall_files_flow::{BeginningRead, FlowId, TopologyNode};

/// Age above which an answer is not used. The paper uses one second.
const FRESH: Duration = Duration::from_secs(1);
/// Uses of an answer. The paper uses an answer about twice at its rates.
const USES_MAX: u32 = 2;
/// The quantile of requests in flight above which a server is hot: .84 in the paper.
const HOT: f64 = 0.84;
/// Answers that a client keeps: 16 in the paper.
const KEPT_MAX: usize = 16;
/// Finished requests of which a server remembers the latency.
const LATENCIES_MAX: usize = 16;

/// The answer of a server to a probe.
#[derive(Clone, Copy)]
struct Answer {
    server: TopologyNode,
    in_flight: u32,
    latency_s: f64,
    at: Timestamp,
    uses: u32,
}

#[derive(Default)]
struct Server {
    in_flight: u32,
    /// For each finished request: the requests in flight at its arrival, and its duration in
    /// seconds.
    done: VecDeque<(u32, f64)>,
    open: BTreeMap<FlowId, u32>,
}

impl Server {
    /// The median latency of the requests that met the number of requests in flight nearest to the
    /// present number, in seconds.
    fn latency_s(&self) -> f64 {
        let away = |at: u32| at.abs_diff(self.in_flight);
        let Some(nearest) = self.done.iter().map(|done| away(done.0)).min() else { return 0.0 };
        let near = self.done.iter().filter(|done| away(done.0) == nearest);
        let mut near: Vec<f64> = near.map(|done| done.1).collect();
        near.sort_by(f64::total_cmp);
        near[near.len() / 2]
    }
}

/// The servers, and the answers that clients keep.
#[derive(Default)]
pub struct Prequal {
    servers: BTreeMap<TopologyNode, Server>,
    answers: BTreeMap<TopologyNode, Vec<Answer>>,
}

impl Prequal {
    /// Picks a copy.
    pub fn pick(
        &mut self,
        now: Timestamp,
        read: &BeginningRead<'_>,
        prng: &mut Prng,
    ) -> TopologyNode {
        let known = self.answers.entry(read.client).or_default();
        known.retain(|answer| now.since(answer.at) <= FRESH && answer.uses < USES_MAX);
        for &server in read.copies {
            if known.iter().all(|answer| answer.server != server) {
                let asked = self.servers.entry(server).or_default();
                let (in_flight, latency_s) = (asked.in_flight, asked.latency_s());
                known.push(Answer { server, in_flight, latency_s, at: now, uses: 0 });
            }
        }
        if known.len() > KEPT_MAX {
            known.drain(..known.len() - KEPT_MAX);
        }
        let mut flights: Vec<u32> = known.iter().map(|answer| answer.in_flight).collect();
        flights.sort_unstable();
        let hot = flights[((flights.len() - 1) as f64 * HOT) as usize];
        let rank = |answer: &Answer, lot: u64| {
            let is_hot = answer.in_flight > hot;
            let second = if is_hot { f64::from(answer.in_flight) } else { answer.latency_s };
            (is_hot, second, lot)
        };
        let copies = known.iter_mut().filter(|answer| read.copies.contains(&answer.server));
        let ranked = copies.map(|answer| (rank(answer, prng.next_u64()), answer));
        let (_, best) = ranked
            .min_by(|(one, _), (other, _)| {
                one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)).then(one.2.cmp(&other.2))
            })
            .expect("an answer for each copy");
        (best.uses, best.in_flight) = (best.uses + 1, best.in_flight + 1);
        let server = self.servers.entry(best.server).or_default();
        server.open.insert(read.flows[0], server.in_flight);
        server.in_flight += 1;
        best.server
    }

    /// Records the end of a request and its duration.
    pub fn ended(&mut self, server: TopologyNode, flow: FlowId, took: Duration) {
        let server = self.servers.entry(server).or_default();
        let Some(at) = server.open.remove(&flow) else { return };
        server.in_flight -= 1;
        server.done.push_back((at, took.as_secs_f64()));
        if server.done.len() > LATENCIES_MAX {
            server.done.pop_front();
        }
    }
}
