//! Models of clouds as the simulator takes them.
//!
//! The crate `evenfall-model` reads the file of a model. [`Simulated::cloud`] is the network of
//! the model, and [`Simulated::host`] is a machine of the model with its processor costs, pauses
//! and clocks. Every study builds its world out of these two values.

use core::time::Duration;

use evenfall_core::ClockError;
use evenfall_model::{DelayShape, Distribution, Number, OutageFile};
pub use evenfall_model::{Model, ModelError, Stack};
use evenfall_sim::{
    ClockSpec, CloudProfile, HostLoad, HostSpec, Outages, PathLoss, Quantiles, Reroutes, Spread,
    StallSpec, Stragglers, Waits,
};

/// A model as the simulator takes it.
pub trait Simulated {
    /// The network.
    fn cloud(&self) -> CloudProfile;

    /// A host, with the costs of this stack.
    fn host(&self, stack: Stack) -> HostSpec;

    /// The clock of a host.
    fn clock(&self) -> ClockSpec;
}

fn us(value: f64) -> Duration {
    Duration::from_nanos((value.max(0.0) * 1e3).round() as u64)
}

fn ns(number: &Number) -> Duration {
    Duration::from_nanos(number.is.max(0.0).round() as u64)
}

fn ms(number: &Number) -> Duration {
    us(number.is * 1e3)
}

fn seconds(number: &Number) -> Duration {
    us(number.is * 1e6)
}

/// The table of quantiles of a distribution.
fn quantiles(distribution: &Distribution) -> Quantiles {
    match &distribution.shape {
        DelayShape::Constant { us: value } => Quantiles::constant(us(*value)),
        DelayShape::Exponential { mean_us } => Quantiles::exponential(us(*mean_us)),
        DelayShape::Lognormal { median_us, sigma } => Quantiles::lognormal(us(*median_us), *sigma),
        DelayShape::Pareto { least_us, alpha, most_us } => {
            Quantiles::pareto(us(*least_us), *alpha, us(*most_us))
        }
        DelayShape::Table { points } => {
            let points: Vec<_> = points.iter().map(|&(q, value)| (q, value * 1e3)).collect();
            Quantiles::from_points(&points).expect("a checked model has ascending points")
        }
    }
}

fn outages(file: &OutageFile) -> Outages {
    Outages { mean_gap: ms(&file.gap_ms), length: quantiles(&file.length) }
}

impl Simulated for Model {
    fn cloud(&self) -> CloudProfile {
        let path = &self.path;
        CloudProfile {
            base: us(path.base_us.is),
            spread: Spread {
                sender: path.sender_sigma.is,
                receiver: path.receiver_sigma.is,
                correlation: path.host_correlation.is,
                pair: path.pair_sigma.is,
                direction: path.direction_sigma.is,
            },
            stragglers: Stragglers {
                share: path.straggler_share.is,
                send: path.straggler_send.is,
                receive: path.straggler_receive.is,
            },
            waits: Waits::new(&quantiles(&path.wait), us(path.wait_lasts_us.is)),
            spikes: path.spikes.as_ref().map(outages),
            episodes: path.episodes.as_ref().map(outages),
            load: path.load.as_ref().map(|load| HostLoad {
                levels: load.levels.clone(),
                burst: us(load.burst_us),
                period: us(load.period_ms * 1e3),
            }),
            wander: path.wander.is,
            wander_period: seconds(&path.wander_period_s),
            reroutes: path
                .reroutes
                .as_ref()
                .map(|routes| Reroutes { every: seconds(&routes.every_s), sigma: routes.sigma.is }),
            loss: PathLoss {
                random: path.random_loss.is,
                within: path.losses.as_ref().map_or(0.0, |loss| loss.within.is),
                bursts: path.losses.as_ref().map(|loss| Outages {
                    mean_gap: ms(&loss.gap_ms),
                    length: quantiles(&loss.length),
                }),
            },
            flow_bits_per_s: (path.flow_gbit_per_s.is * 1e9) as u64,
            loopback: us(path.loopback_us.is),
            send_queue: us(path.send_queue_us.is),
            ..CloudProfile::constant(Duration::ZERO)
        }
    }

    fn host(&self, stack: Stack) -> HostSpec {
        let costs = self.costs(stack);
        let stall = |stall: &OutageFile| StallSpec {
            mean_gap: ms(&stall.gap_ms),
            length: quantiles(&stall.length),
        };
        HostSpec {
            cores: self.host.cores.is as u16,
            nic_bits_per_s: (self.host.nic_gbit_per_s.is * 1e9) as u64,
            nic_packets_per_s: self.host.nic_packets_per_s.is as u64,
            ingress_queue: us(self.host.ingress_queue_us.is),
            wake_cost: ns(&costs.wake_ns),
            receive_cost: ns(&costs.receive_ns),
            send_cost: ns(&costs.send_ns),
            copy_cost: ns(&costs.copy_ns),
            send_threads: costs.send_threads.is as u16,
            card_cost: ns(&costs.card_ns),
            send_queue: us(self.path.send_queue_us.is),
            timer_late: quantiles(&costs.timer_late),
            stalls: self.host.stalls.iter().map(stall).collect(),
            clock: self.clock(),
            ..HostSpec::default()
        }
    }

    fn clock(&self) -> ClockSpec {
        let clock = &self.clock;
        ClockSpec {
            drift_spread_ppb: clock.drift_ppb.is as u32,
            wander_ppb: clock.wander_ppb.is as u32,
            wander_period: seconds(&clock.wander_period_s),
            offset_spread: ns(&clock.offset_ns),
            noise: ns(&clock.noise_ns),
            slew_ppb: clock.slew_ppb.is as u32,
            stated: ClockError::Within(ns(&clock.stated_ns)),
            period: ms(&clock.period_ms),
            ..ClockSpec::default()
        }
    }
}
