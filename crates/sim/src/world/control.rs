//! Faults, while the run goes on.

use core::time::Duration;

use evenfall_core::{ClockError, Machine};

use super::node::Node;
use super::{Borders, Bursts, Late, World};
use crate::faults::Fault;
use crate::network::{Loss, Network, Rates};
use crate::observer::Observer;
use crate::{NodeIndex, SimTime};

/// A partition in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionId(u32);

/// Which packets a partition stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Packets in both directions.
    Both,
    /// Packets to the nodes that are cut off. What these nodes send still arrives.
    Deaf,
    /// Packets from the nodes that are cut off. What is sent to these nodes still arrives.
    Mute,
}

impl<M: Machine, N: Network> World<M, N> {
    /// Applies a fault now.
    ///
    /// # Panics
    /// When a restart is asked for and the observer does not [`revive`](Observer::revive) the node.
    pub fn inject<O: Observer<M, N>>(&mut self, fault: &Fault, observer: &mut O) {
        observer.fault(self.now, fault);
        match *fault {
            Fault::Crash(node) => self.crash(node),
            Fault::Restart(node) => {
                // The observer hears of the fault first, because a crash changes the disk out of
                // which the next life is made.
                self.crash(node);
                let machine = observer.revive(node, self.local(node));
                self.restart(node, machine.expect("the observer does not revive nodes"));
            }
            Fault::Pause(node, duration) => self.pause(node, duration),
            Fault::Partition(ref nodes) => drop(self.partition(nodes)),
            Fault::OneWay(ref nodes, cut) => drop(self.cut(nodes, cut)),
            Fault::Heal => self.heal_all(),
            Fault::Rates(rates) => self.set_rates(rates),
            Fault::Bursts(bursts) => self.set_bursts(bursts),
            Fault::Late(late) => self.set_late(late),
            Fault::Slow(node, factor) => self.slow(node, factor),
            Fault::ClockStep(node, by_ns) => self.step_clock(node, by_ns, observer),
            Fault::ClockStated(node, error) => self.state_clock(node, error),
            Fault::ClockDrift(node, ppb) => self.set_drift(node, ppb),
            Fault::Disk(node, faults) => {
                // A disk that the world does not know belongs to the observer, who has heard of
                // this fault.
                if let Some(writes) = &self.nodes[node.0 as usize].writes {
                    writes.disk().set_faults(faults);
                }
            }
            // The object store belongs to the observer, who has heard of the fault.
            Fault::Objects(_) => {}
        }
    }

    /// The process of a node dies. The packets in its socket are lost, and so are the packets that
    /// arrive later. Crashing a node that is down changes nothing.
    pub fn crash(&mut self, node: NodeIndex) {
        let index = node.0;
        let node = &mut self.nodes[index as usize];
        if node.up {
            let waiting = node.crash(self.now.0);
            self.fabric.tally.lost[Loss::Down as usize] += u64::from(waiting);
            self.timers.remove(index);
        }
    }

    /// A crashed node comes back with a new machine and its old address. A node that is up
    /// crashes first.
    pub fn restart(&mut self, node: NodeIndex, machine: M) {
        self.crash(node);
        let index = node.0;
        let node = &mut self.nodes[index as usize];
        node.machine = machine;
        node.up = true;
        self.boot(index);
    }

    /// The process of a node stops for a while, as under SIGSTOP. Arrivals wait in the socket
    /// buffer of the node, arrivals beyond the limit of the buffer are lost, and timers are late. A
    /// node that is down stays as it is.
    pub fn pause(&mut self, node: NodeIndex, duration: Duration) {
        let until = self.now + duration;
        let node = &mut self.nodes[node.0 as usize];
        if node.up {
            node.stopped = node.stopped.max(until.0);
        }
    }

    /// Cuts these nodes off from all others; what is on its way still arrives. Partitions add up.
    ///
    /// # Panics
    /// When 64 are in force already.
    pub fn partition(&mut self, nodes: &[NodeIndex]) -> PartitionId {
        self.cut(nodes, Cut::Both)
    }

    /// Stops packets between these nodes and all others in one direction, or in both. Otherwise as
    /// [`partition`](Self::partition).
    ///
    /// # Panics
    /// When 64 are in force already.
    pub fn cut(&mut self, nodes: &[NodeIndex], cut: Cut) -> PartitionId {
        let Borders { partitions, sides, mute, deaf, .. } = &mut self.fabric.borders;
        let bit = partitions.trailing_ones();
        assert!(bit < 64, "64 partitions are in force");
        *partitions |= 1 << bit;
        match cut {
            Cut::Both => {}
            Cut::Deaf => *deaf |= 1 << bit,
            Cut::Mute => *mute |= 1 << bit,
        }
        for node in nodes {
            sides[node.0 as usize] |= 1 << bit;
        }
        PartitionId(bit)
    }

    /// Ends a partition.
    pub fn heal(&mut self, partition: PartitionId) {
        let Borders { partitions, sides, mute, deaf, .. } = &mut self.fabric.borders;
        for bits in [partitions, mute, deaf] {
            *bits &= !(1 << partition.0);
        }
        for side in sides {
            *side &= !(1 << partition.0);
        }
    }

    /// Ends all partitions.
    pub fn heal_all(&mut self) {
        let borders = &mut self.fabric.borders;
        (borders.partitions, borders.mute, borders.deaf) = (0, 0, 0);
        borders.sides.fill(0);
    }

    /// Random faults of the network, from now on.
    pub fn set_rates(&mut self, rates: Rates) {
        self.fabric.network.set_rates(rates);
    }

    /// Losses in bursts, from now on. A default value ends them.
    pub fn set_bursts(&mut self, bursts: Bursts) {
        self.fabric.packet_faults.get_or_insert_default().set_bursts(bursts);
        self.fabric.packet_faults.take_if(|trouble| trouble.is_over());
    }

    /// Late packets, from now on. A default value ends them.
    pub fn set_late(&mut self, late: Late) {
        self.fabric.packet_faults.get_or_insert_default().set_late(late);
        self.fabric.packet_faults.take_if(|trouble| trouble.is_over());
    }

    /// Multiplies the processor costs of a node's host, and the network's delays to and from that
    /// host, by a factor. The factor 1 ends the slowness.
    pub fn slow(&mut self, node: NodeIndex, factor: f64) {
        let host = self.host_of(node);
        self.hosts[host.0 as usize].slow(factor);
        self.fabric.network.slow(self.now, host, factor);
    }

    /// The synchronised clock of a node's host steps, and every node there reads it at once. The
    /// stated error bound does not change: a large step makes it a lie.
    pub fn step_clock<O: Observer<M, N>>(&mut self, node: NodeIndex, by_ns: i64, observer: &mut O) {
        let now = self.now.0;
        let (mut region, mut out) = self.parts(observer);
        let (_, host) = region.node(node.0);
        host.clock.step(now, by_ns);
        for index in host.nodes.clone() {
            if region.node(index).0.up {
                region.read_clock(now, index, &mut out);
            }
        }
    }

    /// From now on the readings of a node's host state this error, whether or not it is true.
    pub fn state_clock(&mut self, node: NodeIndex, error: ClockError) {
        let host = self.host_of(node);
        self.hosts[host.0 as usize].clock.state(error);
    }

    /// The local clock of a node's host runs at another rate from now on.
    pub fn set_drift(&mut self, node: NodeIndex, drift_ppb: i64) {
        let host = self.nodes[node.0 as usize].host;
        let now = self.now.0;
        let from = self.parts(&mut ()).0.read_ahead(host, now);
        self.hosts[host as usize].clock.set_drift(from, drift_ppb);
        self.arm_again(host);
    }

    /// Timers of a host are due at other true times than before.
    fn arm_again(&mut self, host: u32) {
        let SimTime(now) = self.now;
        let host = &mut self.hosts[host as usize];
        for &index in &host.nodes {
            let node: &mut Node<M> = &mut self.nodes[index as usize];
            node.armed = None;
            if let Some(timeout) = node.machine.poll_timeout().filter(|_| node.up) {
                node.armed = Some(timeout);
                node.fires = host.fires(index, timeout);
                self.timers.arm(index, node.fires.max(node.free()).max(now));
            }
        }
    }
}
