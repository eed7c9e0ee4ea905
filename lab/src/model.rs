//! Models of clouds as the simulator takes them.
//!
//! The crate `evenfall-model` reads the file of a model. [`Simulated::cloud`] is the network of
//! the model, and [`Simulated::host`] is a machine of the model with its processor costs, pauses
//! and clocks. Every study builds its world out of these two values.

use core::time::Duration;

use evenfall_core::ClockError;
use evenfall_model::{Distribution, Number, OutageFile, Shape};
pub use evenfall_model::{Model, ModelError, Stack};
use evenfall_sim::{
    ClockSpec, CloudProfile, HostSpec, Load, Outages, PathLoss, Quantiles, Reroutes, Spread,
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
        Shape::Constant { us: value } => Quantiles::constant(us(*value)),
        Shape::Exponential { mean_us } => Quantiles::exponential(us(*mean_us)),
        Shape::Lognormal { median_us, sigma } => Quantiles::lognormal(us(*median_us), *sigma),
        Shape::Pareto { least_us, alpha, most_us } => {
            Quantiles::pareto(us(*least_us), *alpha, us(*most_us))
        }
        Shape::Table { points } => {
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
            load: path.load.as_ref().map(|load| Load {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_model_is_a_world() {
        for name in Model::names() {
            let model = Model::named(name).expect(name);
            let (cloud, host) = (model.cloud(), model.host(Stack::Sockets));
            assert!(cloud.base > Duration::ZERO && host.copy_cost > Duration::ZERO, "{name}");
        }
    }

    /// A built-in model in which no two numbers are equal, and none is 0.
    fn distinct(name: &str) -> Model {
        let mut model = Model::named(name).expect(name);
        let (path, clock) = (&mut model.path, &mut model.clock);
        let shares = [&mut path.pair_sigma, &mut path.wander];
        let times = [
            &mut path.flow_gbit_per_s,
            &mut clock.offset_ns,
            &mut clock.noise_ns,
            &mut clock.slew_ppb,
            &mut clock.stated_ns,
        ];
        shares.into_iter().zip([0.11, 0.04]).for_each(|(number, is)| number.is = is);
        times.into_iter().zip([7.0, 410.0, 520.0, 630.0, 740.0]).for_each(|(n, is)| n.is = is);
        let keys = model.numbers().into_iter().enumerate();
        keys.fold(model, |model, (at, (key, _))| {
            model.scaled(&key, 1.0 - at as f64 / 1_000.0).unwrap_or(model)
        })
    }

    /// The simulator counts whole nanoseconds, bits and packets.
    fn is_near(got: f64, wanted: f64) -> bool {
        (got - wanted).abs() <= 1.0 + 1e-6 * wanted.abs()
    }

    #[test]
    fn every_plain_number_of_a_path_has_its_place_in_the_simulator() {
        for name in ["aws", "gcp"] {
            let (model, cloud) = (distinct(name), distinct(name).cloud());
            let has_routes = |key: &str| !key.starts_with("reroutes") || name == "gcp";
            let number = |key: &str| match model.number(&format!("path.{key}")) {
                Ok(number) => number,
                Err(_) if !has_routes(key) => 0.0,
                Err(error) => panic!("{error}"),
            };
            let shares = [
                ("sender_sigma", cloud.spread.sender),
                ("receiver_sigma", cloud.spread.receiver),
                ("host_correlation", cloud.spread.correlation),
                ("pair_sigma", cloud.spread.pair),
                ("direction_sigma", cloud.spread.direction),
                ("straggler_share", cloud.stragglers.share),
                ("straggler_send", cloud.stragglers.send),
                ("straggler_receive", cloud.stragglers.receive),
                ("wander", cloud.wander),
                ("reroutes.sigma", cloud.reroutes.map_or(0.0, |routes| routes.sigma)),
                ("random_loss", cloud.loss.random),
                ("losses.within", cloud.loss.within),
            ];
            for (key, got) in shares {
                assert_eq!(got.to_bits(), number(key).to_bits(), "{name}: {key}");
            }
            let gap = |outages: &Option<Outages>| outages.as_ref().map(|one| one.mean_gap);
            let times = [
                ("base_us", 1e3, Some(cloud.base)),
                ("spikes.gap_ms", 1e6, gap(&cloud.spikes)),
                ("losses.gap_ms", 1e6, gap(&cloud.loss.bursts)),
                ("wander_period_s", 1e9, Some(cloud.wander_period)),
                ("reroutes.every_s", 1e9, cloud.reroutes.map(|routes| routes.every)),
                ("loopback_us", 1e3, Some(cloud.loopback)),
                ("send_queue_us", 1e3, Some(cloud.send_queue)),
            ];
            for (key, unit_ns, got) in times {
                let got = got.unwrap_or_default().as_nanos() as f64;
                assert!(is_near(got, number(key) * unit_ns), "{name}: {key} is {got} ns");
            }
            let limit = number("flow_gbit_per_s") * 1e9;
            assert!(is_near(cloud.flow_bits_per_s as f64, limit), "{name}");
        }
    }

    #[test]
    fn every_plain_number_of_a_host_has_its_place_in_the_simulator() {
        for (name, stack) in [("aws", Stack::Sockets), ("gcp", Stack::KernelBypass)] {
            let (model, host) = (distinct(name), distinct(name).host(stack));
            let number = |key: &str| {
                let key = key.replace("STACK", &stack.to_string());
                model.number(&key).unwrap_or_else(|error| panic!("{error}"))
            };
            let ns = |time: Duration| time.as_nanos() as f64;
            let clock = &host.clock;
            let ClockError::Within(stated) = clock.stated else { panic!("a model states a bound") };
            let stalled = |at: usize| host.stalls.get(at).map_or(0.0, |one| ns(one.mean_gap));
            let numbers = [
                ("host.cores", 1.0, f64::from(host.cores)),
                ("host.nic_gbit_per_s", 1e9, host.nic_bits_per_s as f64),
                ("host.nic_packets_per_s", 1.0, host.nic_packets_per_s as f64),
                ("host.ingress_queue_us", 1e3, ns(host.ingress_queue)),
                ("host.stalls.0.gap_ms", 1e6, stalled(0)),
                ("host.stalls.1.gap_ms", 1e6, stalled(1)),
                ("stack.STACK.wake_ns", 1.0, ns(host.wake_cost)),
                ("stack.STACK.receive_ns", 1.0, ns(host.receive_cost)),
                ("stack.STACK.send_ns", 1.0, ns(host.send_cost)),
                ("stack.STACK.copy_ns", 1.0, ns(host.copy_cost)),
                ("stack.STACK.send_threads", 1.0, f64::from(host.send_threads)),
                ("stack.STACK.card_ns", 1.0, ns(host.card_cost)),
                ("path.send_queue_us", 1e3, ns(host.send_queue)),
                ("clock.drift_ppb", 1.0, f64::from(clock.drift_spread_ppb)),
                ("clock.wander_ppb", 1.0, f64::from(clock.wander_ppb)),
                ("clock.wander_period_s", 1e9, ns(clock.wander_period)),
                ("clock.offset_ns", 1.0, ns(clock.offset_spread)),
                ("clock.noise_ns", 1.0, ns(clock.noise)),
                ("clock.slew_ppb", 1.0, f64::from(clock.slew_ppb)),
                ("clock.stated_ns", 1.0, ns(stated)),
                ("clock.period_ms", 1e6, ns(clock.period)),
            ];
            for (key, unit, got) in numbers {
                assert!(is_near(got, number(key) * unit), "{name}: {key} is {got}");
            }
        }
    }
}
