//! What the types of the settings allow and a run does not: values out of range, keys that
//! contradict each other, nodes without which there is no run.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Feed, Io, Node, RoleName, Settings, Survey};

/// Trees of a run; more than sixty-four cores do not serve one feed.
const TREES: RangeInclusive<u32> = 1..=64;
/// Priorities of the kernel's real-time classes.
const REAL_TIME: RangeInclusive<u8> = 1..=99;
/// Twice the longest hold by default: who wants to spin for longer wants `io.never_sleep`.
const SPIN_MAX: Duration = Duration::from_millis(100);

/// One of them.
pub(super) struct Mistake {
    /// Where: a dotted key, in which an entry of a list goes by its index. Empty for the file.
    pub key: String,
    /// What, and what is allowed.
    pub why: String,
}

impl Mistake {
    fn new(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self { key: key.into(), why: why.into() }
    }

    /// A mistake in words that begin with their key.
    fn in_words(why: String) -> Self {
        let key = why.split([' ', ':']).next().unwrap_or_default();
        Self::new(key, why.clone())
    }

    /// The line of the key in the text, or that of its table where the text leaves the key out.
    pub(super) fn line(&self, text: &str) -> Option<usize> {
        line_of(text, &self.key)
    }
}

/// The line of a dotted key in a TOML text, in which an entry of a list goes by its index; that of
/// its table where the text leaves the key out.
pub fn line_of(text: &str, key: &str) -> Option<usize> {
    let document = toml_edit::Document::parse(text).ok()?;
    let mut item = document.as_item();
    let mut found = None;
    for part in key.split('.') {
        let next = part.parse().map_or_else(|_| item.get(part), |index: usize| item.get(index));
        let Some(next) = next else { break };
        item = next;
        found = item.span().or(found);
    }
    found.map(|span| text[..span.start].matches('\n').count() + 1)
}

fn within<T: PartialOrd + Display>(
    key: &str,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<(), Mistake> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(Mistake::new(key, format!("{key} = {value}: must be {least} to {most}")))
}

fn above_zero(key: &str, value: f64) -> Result<(), Mistake> {
    if value > 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Mistake::new(key, format!("{key} = {value}: must be above 0")))
}

fn one_at_least(key: &str, value: f64) -> Result<(), Mistake> {
    if value >= 1.0 && value.is_finite() {
        return Ok(());
    }
    Err(Mistake::new(key, format!("{key} = {value}: must be at least 1")))
}

impl Feed {
    fn check(&self) -> Result<(), Mistake> {
        above_zero("feed.speed", self.speed)?;
        above_zero("feed.rate", self.rate.unwrap_or(1.0))?;
        if self.fit == Some(Duration::ZERO) {
            return Err(Mistake::new("feed.fit", "feed.fit = 0s: must be above 0"));
        }
        one_at_least("feed.synthetic.symbols", self.synthetic.symbols.into())?;
        one_at_least("feed.synthetic.mean_rate", self.synthetic.mean_rate)?;
        if self.file.is_some() && self.mold.is_some() {
            let why = "feed.file and feed.mold: give one of them";
            return Err(Mistake::new("feed.mold", why));
        }
        self.check_pace()?;
        self.check_mold()
    }

    /// A feed has one pace.
    fn check_pace(&self) -> Result<(), Mistake> {
        let (rate, fit) = (self.rate.is_some(), self.fit.is_some());
        // A speed of 1 is that of `evenfall config default`: nobody asked for it.
        let speed = self.speed != 1.0;
        if self.mold.is_some() && (rate || fit) {
            let key = if rate { "feed.rate" } else { "feed.fit" };
            return Err(Mistake::new(key, format!("{key}: a live feed comes at its own times")));
        }
        let mut given = [("feed.rate", rate), ("feed.fit", fit), ("feed.speed", speed)]
            .into_iter()
            .filter_map(|(key, given)| given.then_some(key));
        if let (Some(first), Some(second)) = (given.next(), given.next()) {
            let why = format!("{first} and {second}: each sets the pace; leave out one");
            return Err(Mistake::new(second, why));
        }
        if self.silence.is_some() && (self.mold.is_some() || rate || fit) {
            let why = "feed.silence: cuts the silences of a replay by own times at a given speed; \
                       leave out feed.mold, feed.rate and feed.fit";
            return Err(Mistake::new("feed.silence", why));
        }
        Ok(())
    }

    fn check_mold(&self) -> Result<(), Mistake> {
        let of_mold = [
            ("feed.mold_b", self.mold_b.is_some()),
            ("feed.mold_request", self.mold_request.is_some()),
            ("feed.mold_interface", self.mold_interface.is_some()),
            ("feed.mold_from", self.mold_from.is_some()),
        ];
        if let (None, Some((key, _))) = (self.mold, of_mold.iter().find(|(_, given)| *given)) {
            let why = format!("{key}: belongs to a live feed; give feed.mold as well");
            return Err(Mistake::new(*key, why));
        }
        if self.mold.is_some() && self.mold == self.mold_b {
            let why = "feed.mold_b: is the address of feed.mold; sides A and B differ";
            return Err(Mistake::new("feed.mold_b", why));
        }
        if self.mold_from == Some(0) {
            let why = "feed.mold_from = 0: MoldUDP64 sequences begin at 1";
            return Err(Mistake::new("feed.mold_from", why));
        }
        Ok(())
    }

    /// The first address that listens to more than this machine.
    fn open_address(&self) -> Option<(&'static str, SocketAddr)> {
        let on_loopback = |address: &SocketAddr| {
            // A group is where its interface is.
            let interface = self.mold_interface.is_some_and(|interface| interface.is_loopback());
            address.ip().is_loopback() || address.ip().is_multicast() && interface
        };
        [("mold", self.mold), ("mold_b", self.mold_b), ("mold_request", self.mold_request)]
            .into_iter()
            .filter_map(|(key, address)| Some((key, address?)))
            .find(|(_, address)| !on_loopback(address))
    }
}

impl Io {
    fn check(&self) -> Result<(), Mistake> {
        within("io.real_time", self.real_time.unwrap_or(*REAL_TIME.start()), &REAL_TIME)?;
        match self.spin {
            Some(spin) if spin > SPIN_MAX => {
                let why = format!("io.spin = {spin:?}: must be 0s to {SPIN_MAX:?}");
                Err(Mistake::new("io.spin", why))
            }
            _ => Ok(()),
        }
    }
}

impl Survey {
    fn check(&self) -> Result<(), Mistake> {
        let least = Duration::from_millis(1);
        let key = match self {
            Self { poll, .. } if *poll < least => "survey.poll",
            Self { poll, step, .. } if step < poll => "survey.step",
            Self { poll, lease, .. } if *lease < *poll * 2 => "survey.lease",
            _ => return Ok(()),
        };
        let why = format!(
            "{key}: poll {:?}, step {:?}, lease {:?}: poll must be 1ms or more, step at least a \
             poll and lease at least two",
            self.poll, self.step, self.lease
        );
        Err(Mistake::new(key, why))
    }
}

impl Node {
    /// The node by itself, at this place of the list.
    fn check(&self, at: usize, trees: u32) -> Result<(), Mistake> {
        let wrong = |key: &str, why: String| {
            Err(Mistake::new(format!("node.{at}.{key}"), format!("node {}: {why}", self.name)))
        };
        if let Err(error) = self.begin() {
            return Err(Mistake::new(format!("node.{at}.from"), error.to_string()));
        }
        if self.from.is_some() && self.role != RoleName::Receiver {
            return wrong("from", "from belongs to a receiver".into());
        }
        if self.record.is_some() && self.role != RoleName::Recorder {
            return wrong("record", "record belongs to a node with role = \"recorder\"".into());
        }
        if self.tree >= trees {
            let why = format!("tree = {}, but run.trees = {trees} (trees count from 0)", self.tree);
            return wrong("tree", why);
        }
        Ok(())
    }
}

impl Settings {
    /// What no program can make sense of.
    pub(super) fn check(&self) -> Result<(), Mistake> {
        self.multicast.check().map_err(|why| Mistake::in_words(format!("multicast.{why}")))?;
        within("run.trees", self.run.trees, &TREES)?;
        let named = ["auto", "same-host", "realtime", "chrony"].contains(&self.run.clock.as_str());
        if !named && !self.run.clock.starts_with("/dev/") {
            let why = format!(
                "run.clock = \"{}\": must be auto, same-host, realtime, chrony or /dev/ptpN",
                self.run.clock
            );
            return Err(Mistake::new("run.clock", why));
        }
        self.feed.check()?;
        self.io.check()?;
        self.survey.check()?;
        for (at, node) in self.nodes.iter().enumerate() {
            let twin = self.nodes[..at].iter().find(|n| n.name == node.name || n.id == node.id);
            if let Some(other) = twin {
                let key = if other.name == node.name { "name" } else { "id" };
                let why = format!(
                    "node: {} (id {}) and {} (id {}) share a name or an id",
                    other.name, other.id.0, node.name, node.id.0
                );
                return Err(Mistake::new(format!("node.{at}.{key}"), why));
            }
            node.check(at, self.run.trees)?;
        }
        let roots = self.count(RoleName::Root);
        if self.count(RoleName::Agent) < self.nodes.len() && roots != 1 {
            let last = self.nodes.iter().rposition(|node| node.role == RoleName::Root);
            let key = last.map_or(String::new(), |at| format!("node.{at}.role"));
            let why = format!("node: {roots} nodes have role = \"root\"; there must be one");
            return Err(Mistake::new(key, why));
        }
        Ok(())
    }

    /// What a run needs besides.
    pub(super) fn check_run(&self) -> Result<(), Mistake> {
        let agents = self.count(RoleName::Agent);
        let listeners = self.count(RoleName::Receiver) + self.count(RoleName::Recorder);
        // Receivers may be of another file, when this one says how many to expect.
        let expected = self.multicast.membership.expect_receivers > 0;
        if self.nodes.is_empty() {
            let why = "no [[node]]: a run needs one root and at least one receiver or recorder; \
                       `evenfall config default` ends with an example";
            return Err(Mistake::new("", why));
        }
        if agents < self.nodes.len() && listeners == 0 && !expected {
            let why = "no receivers: a run needs one root and at least one receiver or recorder";
            return Err(Mistake::new("", why));
        }
        if self.run.key_file.is_some() {
            return Ok(());
        }
        let open = "without run.key_file nothing listens or sends beyond loopback; set it, or use \
                    an address in 127.0.0.0/8 or ::1";
        if let Some((key, address)) = self.feed.open_address() {
            return Err(Mistake::new(
                format!("feed.{key}"),
                format!("feed.{key} = {address}: {open}"),
            ));
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let addresses = [("address", Some(node.address)), ("http", node.http)];
            let mut given =
                addresses.into_iter().filter_map(|(key, address)| Some((key, address?)));
            if let Some((key, address)) = given.find(|(_, address)| !address.ip().is_loopback()) {
                let why = format!("node {}: {key} = {address}: {open}", node.name);
                return Err(Mistake::new(format!("node.{at}.{key}"), why));
            }
        }
        Ok(())
    }
}
