//! The parameters of a measured run.

use core::time::Duration;
use std::sync::Arc;

use evenfall_core::{ClockError, NodeId, Prng, Timestamp};
use evenfall_multicast_machine::tree::Dimensions;
use evenfall_multicast_machine::{Config, SharedKey};
use evenfall_sim::{CloudProfile, Fault, HostIndex, HostSpec, Network, World};

use super::cast::Cast;
use super::node::{CampaignNode, MulticastActor};
use crate::model::{Model, Simulated, Stack};

/// A run of the overlay at a steady pace or a feed's own times, without faults but those of the
/// cloud model.
#[derive(Clone, Debug)]
pub struct OverlayParams {
    /// Settings of the overlay: mode, shape, deadline and all limits.
    pub config: Config,
    /// Receivers.
    pub receivers: u32,
    /// Proxies beyond those that the shape needs.
    pub spares: u32,
    /// Trees side by side, over which messages are dealt in turn. Each has its own root and
    /// proxies; every receiver is in all of them.
    pub trees: u32,
    /// Receivers that share one host.
    pub receivers_per_host: u32,
    /// Messages per second, over all trees.
    pub rate: f64,
    /// Bytes of a message.
    pub size: usize,
    /// How long the feed lasts.
    pub duration: Duration,
    /// When every message is due, counted from the first. `None` means a steady pace. With times,
    /// `duration` has no effect, and `rate` is the pace of the warm-up alone.
    pub times: Option<Arc<[Duration]>>,
    /// How long empty frames run at the pace of the feed before its first message.
    pub warm_up: Duration,
    /// Cores that share the run. The results do not depend on their number.
    pub cores: usize,
    /// Seed of all random numbers of the run.
    pub seed: u64,
    /// The shared key, if there is one.
    pub key: Option<SharedKey>,
    /// The network.
    pub cloud: CloudProfile,
    /// The machine that every host is.
    pub host: HostSpec,
    /// Receivers whose clocks are ahead, by so many nanoseconds; behind, when negative. The error
    /// that all hosts may have comes on top. Each of these receivers has a host of its own.
    pub clocks_ahead: Vec<(u32, i64)>,
    /// Whether every host finds its time by a keeper of its own ([`super::keepers`]), where it
    /// otherwise reads a clock that errs as `host` says. The feed begins when the keepers have
    /// settled.
    pub keepers: bool,
    /// Faults, with their times counted from the first message. Crashes are not supported, because
    /// no crashed node is started again.
    pub faults: Vec<(Duration, Fault)>,
}

impl Default for OverlayParams {
    fn default() -> Self {
        Self {
            config: Config::default(),
            receivers: 100,
            spares: 0,
            trees: 1,
            receivers_per_host: 1,
            rate: 5_000.0,
            size: 40,
            duration: Duration::from_secs(2),
            times: None,
            warm_up: Duration::from_secs(1),
            cores: 1,
            seed: 1,
            key: None,
            cloud: CloudProfile::default(),
            host: HostSpec::default(),
            clocks_ahead: Vec::new(),
            keepers: false,
            faults: Vec::new(),
        }
    }
}

/// The role of each node by its number. Trees come first, one after the other, each with its root
/// and then its proxies. Receivers come last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub trees: u32,
    pub proxies: u32,
    pub receivers: u32,
}

impl Layout {
    /// The node of the root of this tree.
    pub fn root(self, tree: u32) -> u32 {
        tree * (1 + self.proxies)
    }

    fn first_receiver(self) -> u32 {
        self.trees * (1 + self.proxies)
    }

    /// The tree to which a node belongs.
    pub fn tree_of(self, node: u32) -> u32 {
        match node.checked_sub(self.first_receiver()) {
            Some(at) => at % self.trees,
            None => node / (1 + self.proxies),
        }
    }

    /// The name in the ledger of the receiver to which this node belongs. A receiver has a node in
    /// every tree.
    pub fn receiver_of(self, node: u32) -> NodeId {
        let at = node - self.first_receiver();
        NodeId(self.first_receiver() + at / self.trees * self.trees)
    }

    /// Number of the receiver to which this node belongs, from 0.
    pub fn number_of(self, node: u32) -> u32 {
        (node - self.first_receiver()) / self.trees
    }

    /// Names of all receivers.
    pub fn receiver_ids(self) -> impl Iterator<Item = NodeId> {
        (0..self.receivers).map(move |r| NodeId(self.first_receiver() + r * self.trees))
    }
}

impl OverlayParams {
    /// The same run on a model's network and hosts.
    pub fn on(self, model: &Model, stack: Stack) -> Self {
        Self { cloud: model.cloud(), host: model.host(stack), ..self }
    }

    /// The same run with clocks that are wrong by up to this error, ahead or behind, and that state
    /// this error as their bound.
    pub fn with_clock_error(mut self, error: Duration) -> Self {
        let clock = &mut self.host.clock;
        (clock.offset_ns, clock.offset_spread, clock.noise) = (0, error, Duration::ZERO);
        clock.stated = ClockError::Within(error);
        self
    }

    /// Proxies of one tree.
    pub fn proxies(&self) -> u32 {
        let config = &self.config;
        let dimensions = Dimensions::of(&config.shape, config.mode, self.receivers as usize);
        dimensions.proxies(&config.shape) as u32 + self.spares
    }

    pub(super) fn layout(&self) -> Layout {
        Layout { trees: self.trees.max(1), proxies: self.proxies(), receivers: self.receivers }
    }

    /// The bound on the clock error that hosts state, both ends of a path counted.
    pub(super) fn clock_error(&self) -> ClockError {
        match self.host.clock.stated {
            ClockError::Within(bound) => ClockError::Within(bound * 2),
            other => other,
        }
    }

    fn cast<M: MulticastActor, N: Network>(&self, world: &World<M, N>, tree: u32) -> Cast {
        let root = self.layout().root(tree);
        let mut config = self.config;
        config.membership.expect_receivers = self.receivers;
        config.membership.expect_proxies = self.proxies();
        Cast {
            config: config.into(),
            key: self.key.clone(),
            master: None,
            stream: tree,
            root: NodeId(root),
            root_address: world.address(evenfall_sim::NodeIndex(root)),
            standbys: Vec::new(),
            signed: None,
        }
    }

    /// Puts all hosts and machines in a world. Returns the local times of the hosts at its
    /// beginning.
    pub(super) fn populate<M: MulticastActor, N: Network>(
        &self,
        world: &mut World<M, N>,
        wrap: impl Fn(CampaignNode) -> M,
    ) -> Vec<Timestamp> {
        let layout = self.layout();
        let mut prng = Prng::new(self.seed).fork(0x63_61_73_74);
        let mut origins = Vec::new();
        let mut host = |world: &mut World<M, N>, ahead_ns: i64| -> (HostIndex, Timestamp) {
            // Every host counts from another origin; a machine is made at that time.
            let mut origin = Timestamp::from_nanos(1_000_000_000 + prng.below(1 << 43));
            let mut spec = self.host.clone();
            if self.keepers {
                if origins.is_empty() {
                    // The time of the first host is that of all keepers. Here it is true time.
                    origin = Timestamp::from_nanos(0);
                    (spec.clock.drift_ppb, spec.clock.drift_spread_ppb) = (0, 0);
                    spec.clock.wander_ppb = 0;
                }
                // The first and only reading of the model's clock is that of a host that knows
                // nothing.
                spec.clock.stated = ClockError::Unknown;
                spec.clock.period = Duration::ZERO;
                (spec.clock.offset_spread, spec.clock.noise) = (Duration::ZERO, Duration::ZERO);
            }
            spec.clock.origin = Some(origin);
            spec.clock.offset_ns += ahead_ns;
            origins.push(origin);
            (world.add_host(spec), origin)
        };
        let casts: Vec<Cast> = (0..layout.trees).map(|tree| self.cast(world, tree)).collect();
        for cast in &casts {
            let (at, now) = host(world, 0);
            world.add_node(wrap(cast.root(1, now)), at);
            for proxy in 1..=layout.proxies {
                let (at, now) = host(world, 0);
                world.add_node(wrap(cast.relay(NodeId(cast.root.0 + proxy), 1, now)), at);
            }
        }
        let mut at = None;
        for receiver in 0..layout.receivers {
            if receiver % self.receivers_per_host.max(1) == 0 {
                let own = self.clocks_ahead.iter().filter(|(whose, _)| *whose == receiver);
                at = Some(host(world, own.map(|(_, ahead)| ahead).sum()));
            }
            let (at, now) = at.expect("the first receiver made one");
            for cast in &casts {
                let id = NodeId(world.node_count() as u32);
                world.add_node(wrap(cast.receiver(id, 1, now)), at);
            }
        }
        origins
    }
}
