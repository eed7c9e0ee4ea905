//! `evenfall-lab bench ports --root`: what the copies of a root cost by each way, on a link.
//!
//! ```text
//!   host 0                                   host 1
//!   root, one thread -- eth0 ==veth== eth0   a socket for each member, or nobody
//! ```
//!
//! The link is a pair of veth without a bridge. The root sends bursts, and the time until a burst
//! has left is measured, so that segments and calls for several datagrams can show what they save.
//! The cost of a way is that of its sending half: the members have hardware addresses that are
//! nobody's, and host 1 drops each packet before it looks at the header of IP. A second pass sends
//! the same bursts to sockets, which count the copies that arrive. Beside each way the same copies
//! are made by bare calls of the kernel. Ways and bare calls take turns within each round, and
//! ratios are medians of the ratios of rounds. On a busy machine the table says that it is void.

use std::cell::RefCell;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use evenfall_host::lab::Lab;
use evenfall_port::choice::{
    KindTrial, PortChoice, TrialLoad, TrialOutcome, TrialPart, choose_quickest,
};
use evenfall_port::trial::root::{RootPath, RootSender};
use evenfall_port::{Options, Port, PortKind};
use evenfall_runtime::program::Outcome;
use serde_json::{Value, json};

use super::super::median;
use super::{Args, OVERHEAD_BYTES, check_args};

/// Datagrams of a burst: as many as the kernel takes as segments of one buffer.
const BURST: usize = 64;
/// The load above which other work falsifies the costs.
const LOAD_MAX: f64 = 1.0;
/// Room for the bursts of a round at each socket.
const ROOM_BYTES: usize = 64 << 20;
const ROOT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The hardware address of host 1, and an address that nobody has.
const MACS: [&str; 2] = ["02:99:00:00:00:02", "02:99:00:00:00:77"];
const WAYS: [(&str, RootPath); 4] = [
    ("udp", RootPath { kind: PortKind::Udp, segments: false }),
    ("segments", RootPath { kind: PortKind::Udp, segments: true }),
    ("tc", RootPath { kind: PortKind::Tc, segments: false }),
    ("tc-segments", RootPath { kind: PortKind::Tc, segments: true }),
];

/// What was measured of a way, a value for each round.
#[derive(Clone, Debug, Default)]
struct Measured {
    /// Nanoseconds a copy.
    costs: Vec<f64>,
    /// The same of the bare calls.
    bare: Vec<f64>,
    /// The same with the delivery to sockets.
    delivered: Vec<f64>,
    /// Copies to sockets, and those that did not arrive.
    copies: u64,
    lost: u64,
    /// Copies that the kernel did not make, though the way is a kernel's.
    by_hand: u64,
    /// Why the way was not measured.
    untried: Option<String>,
}

/// Measures and prints.
pub fn main(args: &Args) -> Outcome {
    check_args(args)?;
    let load = read_load();
    let bench = Bench::open(args)?;
    let mut all = vec![Measured::default(); WAYS.len()];
    for _ in 0..args.rounds {
        for ((_, path), measured) in WAYS.iter().zip(&mut all) {
            if measured.untried.is_none()
                && let Err(why) = bench.play_round(*path, measured)
            {
                measured.untried = Some(why);
            }
        }
    }
    let choice = choose_way(&all);
    if args.json {
        say!("{}", to_json(args, load, &all, &choice));
        return Ok(());
    }
    say!(
        "{}-byte messages to {} members, one a datagram, bursts of {BURST}, medians of {} rounds, \
         load {load:.1}",
        args.size,
        args.fanout,
        args.rounds
    );
    if load > LOAD_MAX {
        say!("void: other work took the cores");
    }
    for (way, measured) in WAYS.iter().zip(&all) {
        say!("  {}", describe_way(way.0, measured, &all[0]));
    }
    say!("io.port = \"auto\" takes {} here: {}", choice.kind.settings_name(), choice.why);
    Ok(())
}

/// The average of the processes that want a core, over a minute.
fn read_load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// The link, and the sockets at its other end.
struct Bench {
    lab: Lab,
    load: TrialLoad,
    bursts: usize,
    sockets: RefCell<Vec<Box<dyn Port>>>,
}

fn member(is_delivered: bool, number: usize) -> SocketAddr {
    let network = if is_delivered { 1 } else { 2 };
    (Ipv4Addr::new(10, 99, network, number as u8), 7_000).into()
}

fn run_ip(lab: &Lab, host: usize, arguments: &str) -> Result<(), String> {
    let mut ip = Command::new("ip");
    ip.args(["-n", &lab.name(host)]).args(arguments.split(' '));
    match ip.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("ip {arguments}: {status}")),
        Err(error) => Err(format!("ip {arguments}: {error}")),
    }
}

/// Joins the hosts by a link without a bridge, and names the hardware addresses of the members.
fn build_link(lab: &Lab, fanout: usize) -> Result<(), String> {
    (0..2).try_for_each(|host| run_ip(lab, host, "link del eth0"))?;
    let peer = lab.name(1);
    run_ip(lab, 0, &format!("link add eth0 type veth peer name eth0 netns {peer}"))?;
    run_ip(lab, 0, &format!("addr add {ROOT}/16 dev eth0"))?;
    run_ip(lab, 1, &format!("link set eth0 address {}", MACS[0]))?;
    (0..2).try_for_each(|host| run_ip(lab, host, "link set eth0 up"))?;
    for (is_delivered, mac) in [(true, MACS[0]), (false, MACS[1])] {
        for number in 0..fanout {
            let ip = member(is_delivered, number).ip();
            run_ip(lab, 0, &format!("neigh replace {ip} lladdr {mac} dev eth0 nud permanent"))?;
        }
    }
    (0..fanout).try_for_each(|number| {
        run_ip(lab, 1, &format!("addr add {}/16 dev eth0", member(true, number).ip()))
    })
}

impl Bench {
    fn open(args: &Args) -> Result<Self, Box<dyn std::error::Error>> {
        let lab = Lab::new(2)?;
        build_link(&lab, args.fanout)?;
        if args.no_offloads {
            (0..2).try_for_each(|host| lab.turn_off_checksums(host))?;
        }
        let mut sockets = Vec::new();
        for number in 0..args.fanout {
            let options = Options { receive_buffer_bytes: ROOM_BYTES, ..Options::default() };
            let at = member(true, number);
            sockets.push(lab.within(1, || evenfall_port::open(at, options.keyed()))??);
        }
        let (part, datagram_bytes) = (TrialPart::Root, OVERHEAD_BYTES + args.size);
        let load = TrialLoad { part, datagram_bytes, fanout: args.fanout };
        let bursts = args.datagrams.div_ceil(BURST);
        Ok(Self { lab, load, bursts, sockets: sockets.into() })
    }

    /// Opens a way, or the bare calls beside it.
    fn open_way(&self, path: RootPath, bare: bool, delivered: bool) -> Result<RootSender, String> {
        if let Some(lacks) = path.kind.lacks() {
            return Err(format!("needs {lacks}"));
        }
        let members: Vec<_> = (0..self.load.fanout).map(|n| member(delivered, n)).collect();
        let (at, load) = ((ROOT, 0).into(), self.load);
        let say = |error: evenfall_host::Error| format!("did not open: {error}");
        let opened = self.lab.within(0, || match bare {
            true => RootSender::open_bare(path, at, &members, load),
            false => RootSender::open(path, &Options::default().keyed(), at, &members, load),
        });
        opened.map_err(say)?.map_err(say)
    }

    /// Copies of a burst.
    fn count_copies(&self) -> usize {
        BURST * self.load.fanout
    }

    /// Sends bursts. Returns the nanoseconds of a copy in the median burst.
    fn play_bursts(&self, sender: &mut RootSender, mut after: impl FnMut()) -> f64 {
        let times = (0..self.bursts).map(|_| {
            let time = sender.send_burst(BURST).as_nanos() as f64;
            after();
            sender.drop_answers();
            time
        });
        median(times.collect()) / self.count_copies() as f64
    }

    /// Reads what has arrived. Returns the number of datagrams.
    fn drain_sockets(&self) -> u64 {
        let mut arrivals = Vec::new();
        for socket in self.sockets.borrow_mut().iter_mut() {
            while socket.receive(&mut arrivals) > 0 {}
        }
        arrivals.len() as u64
    }

    fn play_round(&self, path: RootPath, measured: &mut Measured) -> Result<(), String> {
        let bare = self.play_bursts(&mut self.open_way(path, true, false)?, || {});
        let mut sender = self.open_way(path, false, false)?;
        let own = self.play_bursts(&mut sender, || {});
        let counted = sender.count_copies();
        drop(sender);
        if let (Some([all, by_kernel]), PortKind::Tc) = (counted, path.kind) {
            measured.by_hand += all - by_kernel;
        }
        let mut sender = self.open_way(path, false, true)?;
        self.drain_sockets();
        let mut arrived = 0;
        let delivered = self.play_bursts(&mut sender, || arrived += self.drain_sockets());
        let copies = (self.bursts * self.count_copies()) as u64;
        measured.copies += copies;
        measured.lost += copies.saturating_sub(arrived);
        measured.bare.push(bare);
        measured.costs.push(own);
        measured.delivered.push(delivered);
        Ok(())
    }
}

/// The median; `None` without values.
fn median_of(values: &[f64]) -> Option<f64> {
    Some(median(values.to_vec())).filter(|median| median.is_finite())
}

/// The median of the ratios of rounds.
fn ratio_of(costs: &[f64], base: &[f64]) -> Option<f64> {
    let ratios: Vec<_> = costs.iter().zip(base).map(|(cost, base)| cost / base).collect();
    median_of(&ratios)
}

impl Measured {
    fn outcome(&self) -> TrialOutcome {
        let untried = self.untried.clone().or_else(|| {
            (self.by_hand > 0).then(|| format!("{} copies were not the kernel's", self.by_hand))
        });
        let (copies, lost) = (self.copies, self.lost);
        match (untried, median_of(&self.costs)) {
            (None, Some(cpu_ns_per_copy)) => {
                TrialOutcome::Measured { cpu_ns_per_copy, copies, lost, damaged: 0 }
            }
            (why, _) => TrialOutcome::Untried(why.unwrap_or_else(|| "not measured".into())),
        }
    }
}

/// What a root that chooses takes. It sends no segments, whatever they cost.
fn choose_way(all: &[Measured]) -> PortChoice {
    let singles = WAYS.iter().zip(all).filter(|((_, path), _)| !path.segments);
    let trials = singles
        .map(|((_, path), measured)| KindTrial { kind: path.kind, outcome: measured.outcome() });
    choose_quickest(&trials.collect::<Vec<_>>())
}

fn describe_way(name: &str, measured: &Measured, base: &Measured) -> String {
    let part = |ratio: Option<f64>, of: &str| {
        ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} of {of}, "))
    };
    let sendmmsg = part(ratio_of(&measured.costs, &base.bare), "sendmmsg");
    let bare = part(ratio_of(&measured.costs, &measured.bare), "its bare calls");
    format!("{name:<11} {sendmmsg}{bare}{}", measured.outcome())
}

fn to_json(args: &Args, load: f64, all: &[Measured], choice: &PortChoice) -> Value {
    let row = |(way, measured): (&(&str, RootPath), &Measured)| {
        let (name, path) = way;
        let is_tried = measured.untried.is_none();
        json!({
            "port": name,
            "cpu_ns_per_copy": median_of(&measured.costs),
            "bare_ns_per_copy": median_of(&measured.bare),
            "delivered_ns_per_copy": median_of(&measured.delivered),
            "ratio_bare": ratio_of(&measured.costs, &measured.bare),
            "ratio_sendmmsg": ratio_of(&measured.costs, &all[0].bare),
            "lost": is_tried.then_some(measured.lost),
            "chosen": path.kind == choice.kind && !path.segments,
            "why": measured.outcome().to_string(),
        })
    };
    json!({
        "what": "root",
        "fanout": args.fanout,
        "size_bytes": args.size,
        "rounds": args.rounds,
        "datagrams": args.datagrams,
        "burst": BURST,
        "offloads": !args.no_offloads,
        "load": load,
        "void": load > LOAD_MAX,
        "chosen": choice.kind.settings_name(),
        "why": choice.why,
        "rows": WAYS.iter().zip(all).map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(fanout: usize, datagrams: usize) -> Args {
        let (size, rounds) = (40, 1);
        Args { fanout, size, datagrams, rounds, root: true, no_offloads: true, json: true }
    }

    fn measured(costs: &[f64], bare: &[f64]) -> Measured {
        let (costs, bare) = (costs.to_vec(), bare.to_vec());
        Measured { costs, bare, copies: 10, ..Measured::default() }
    }

    #[test]
    fn ratios_are_those_of_rounds_and_a_root_that_chooses_sends_no_segments() {
        let all = [
            measured(&[900.0, 2_000.0, 1_100.0], &[1_000.0, 2_000.0, 1_000.0]),
            measured(&[10.0, 10.0, 10.0], &[10.0, 10.0, 10.0]),
            measured(&[400.0, 900.0, 400.0], &[380.0, 900.0, 400.0]),
            Measured { untried: Some("needs a card".into()), ..Measured::default() },
        ];
        let choice = choose_way(&all);
        assert_eq!(choice.kind, PortKind::Tc);
        let json = to_json(&args(10, 64), 3.5, &all, &choice);
        assert_eq!((&json["void"], &json["chosen"]), (&json!(true), &json!("tc")));
        let row = |row: usize, key: &str| json["rows"][row][key].clone();
        assert_eq!(row(0, "ratio_bare"), 1.0);
        assert_eq!((row(2, "ratio_sendmmsg"), row(2, "ratio_bare")), (json!(0.4), json!(1.0)));
        assert_eq!((row(1, "chosen"), row(2, "chosen")), (json!(false), json!(true)));
        assert_eq!((row(3, "cpu_ns_per_copy"), row(3, "lost")), (Value::Null, Value::Null));
        assert_eq!(row(3, "why"), "needs a card");
        let said = describe_way("tc", &all[2], &all[0]);
        let expected = "tc          0.40 of sendmmsg, 1.00 of its bare calls, 400 ns a copy, 0 of \
                        10 lost";
        assert_eq!(said, expected);
    }

    #[test]
    fn copies_that_a_kernel_did_not_make_are_no_measurement_of_it() {
        let by_hand = Measured { by_hand: 7, ..measured(&[1.0], &[1.0]) };
        let outcome = TrialOutcome::Untried("7 copies were not the kernel's".into());
        assert_eq!(by_hand.outcome(), outcome);
        assert!(matches!(Measured::default().outcome(), TrialOutcome::Untried(_)));
    }

    #[test]
    fn every_way_delivers_every_copy_on_a_link() {
        let args = args(3, 2 * BURST);
        let bench = match Bench::open(&args) {
            Ok(bench) => bench,
            Err(error) => return say!("skipped: hosts: {error}"),
        };
        for (name, path) in WAYS {
            let mut measured = Measured::default();
            match bench.play_round(path, &mut measured) {
                Ok(()) => assert_eq!((measured.lost, measured.by_hand), (0, 0), "{name}"),
                Err(why) => {
                    assert!(why.starts_with("needs "), "{name}: {why}");
                    say!("skipped: {name}: {why}");
                }
            }
        }
    }
}
