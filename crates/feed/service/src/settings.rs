//! The section `[feed]` of the settings.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenfall_runtime::address;
use evenfall_runtime::settings::OPEN;
use evenfall_runtime::settings::check::{SettingsMistake, within};
use serde::{Deserialize, Serialize};

/// Range of messages per second. The smallest rate is a message in a quarter of an hour, and a
/// slower run would look dead. At the largest rate messages are a nanosecond apart, the resolution
/// of the clock.
const RATE: RangeInclusive<f64> = 0.001..=1e9;
/// Range of replay speeds. At the smallest speed a day takes three years, and at the largest a
/// second takes a nanosecond.
const SPEED: RangeInclusive<f64> = 0.001..=1e9;
/// Range of the symbols of a generated feed. ITCH numbers symbols by 16 bits, from 1.
const SYMBOLS: RangeInclusive<u16> = 1..=u16::MAX;

/// The source of the messages and their pace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Feed {
    /// A market-data file: ITCH (plain or gzip), pcap, LOBSTER CSV or zip.
    pub file: Option<PathBuf>,
    /// The format of the messages, by its word ([`evenfall_feed_formats::codec::named`]). By
    /// default a file says it itself, and a live feed is ITCH.
    pub format: Option<String>,
    /// Whether only the first copy of each packet of a capture with sides A and B is sent. By
    /// default this is so when two sides are recognised.
    pub arbitrate: Option<bool>,
    /// A live MoldUDP64 feed: the address to listen on; a multicast group is joined. The feed
    /// itself carries no key, so beyond loopback it takes `run.key_file` to be listened to.
    #[serde(deserialize_with = "address::deserialize_optional")]
    pub mold: Option<SocketAddr>,
    /// The redundant side of the same session. The first copy of each message counts.
    #[serde(deserialize_with = "address::deserialize_optional")]
    pub mold_b: Option<SocketAddr>,
    /// Address of the re-request server. Without it, missing messages are not requested.
    #[serde(deserialize_with = "address::deserialize_optional")]
    pub mold_request: Option<SocketAddr>,
    /// IPv4 address of the interface on which groups are joined; the routing table's choice by
    /// default. Without a key it must be a loopback address.
    pub mold_interface: Option<Ipv4Addr>,
    /// The first wanted sequence; 1 for the whole session. By default, the first sequence that
    /// arrives.
    pub mold_from: Option<u64>,
    /// How long later messages wait for missing messages. Then the missing messages are reported
    /// lost and skipped. The time counts from when messages are missed. With `mold_request` it
    /// counts from their request, or from the last progress of the repair.
    #[serde(with = "humantime_serde")]
    pub mold_gap_timeout: Duration,
    /// How long a hole may be filled by the other side or by a reordered packet, before it is
    /// requested.
    #[serde(with = "humantime_serde")]
    pub mold_skew: Duration,
    /// Limit of messages held behind a hole. At the limit the hole is given up.
    pub mold_hold_messages: usize,
    /// Limit of the bytes held behind a hole. At the limit the hole is given up.
    pub mold_hold_bytes: usize,
    /// Addresses that may send the feed. Without any, each side listens to the first address that
    /// sends, until that is silent for 5 s.
    pub mold_sources: Vec<IpAddr>,
    /// A generated feed, when neither is given.
    pub synthetic: Synthetic,
    /// Replay by the messages' own times, this many times faster.
    pub speed: f64,
    /// Replay at this many messages per second instead.
    pub rate: Option<f64>,
    /// Replay so fast that the whole file takes this long instead; needs a file or the generator.
    #[serde(with = "humantime_serde")]
    pub fit: Option<Duration>,
    /// Cut silences between two messages to this, after `speed`: bursts stay as they happened, and
    /// a capture of a weekend is replayed in seconds.
    #[serde(with = "humantime_serde")]
    pub silence: Option<Duration>,
}

impl Default for Feed {
    fn default() -> Self {
        Self {
            file: None,
            format: None,
            arbitrate: None,
            mold: None,
            mold_b: None,
            mold_request: None,
            mold_interface: None,
            mold_from: None,
            // Enough for many exchanges with a re-request server of the same site, and short enough
            // that the messages behind the hole are still of use.
            mold_gap_timeout: Duration::from_millis(500),
            // Two paths of one site differ by about this delay.
            mold_skew: Duration::from_millis(1),
            // The busiest recorded open has 55,946 messages in 100 ms, which are 280,000 in the
            // patience of 500 ms. The limit leaves room for a day that is four times as busy.
            mold_hold_messages: 1 << 20,
            // The same number of messages of 50 bytes, and a margin.
            mold_hold_bytes: 64 << 20,
            mold_sources: Vec::new(),
            synthetic: Synthetic::default(),
            speed: 1.0,
            rate: None,
            fit: None,
            silence: None,
        }
    }
}

/// The generated feed: ITCH with the bursts of a real open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Synthetic {
    /// The same seed gives the same feed.
    pub seed: u64,
    /// Securities, 1 to 65,535.
    pub symbols: u16,
    /// Messages in all, the directory included.
    pub messages: u64,
    /// Messages per second in the mean.
    pub mean_rate: f64,
    /// Whether the rate follows the bursts of a real open, or stays the same.
    pub bursts: bool,
}

impl Default for Synthetic {
    fn default() -> Self {
        // A rate that two cores can carry to twenty receivers, with reserve for the bursts.
        Self { seed: 1, symbols: 200, messages: 40_000, mean_rate: 2_000.0, bursts: true }
    }
}

impl Feed {
    /// # Errors
    /// A value that is out of range, or two keys that contradict each other.
    pub fn check(&self) -> Result<(), SettingsMistake> {
        within("feed.speed", self.speed, &SPEED)?;
        within("feed.rate", self.rate.unwrap_or(1.0), &RATE)?;
        if self.fit == Some(Duration::ZERO) {
            return Err(SettingsMistake::new("feed.fit", "feed.fit = 0s: must be above 0"));
        }
        within("feed.synthetic.symbols", self.synthetic.symbols, &SYMBOLS)?;
        within("feed.synthetic.mean_rate", self.synthetic.mean_rate, &(1.0..=*RATE.end()))?;
        crate::input::format_named(self.format.as_deref())
            .map_err(|why| SettingsMistake::new("feed.format", why.to_string()))?;
        if self.arbitrate.is_some() && self.file.is_none() {
            let why = "feed.arbitrate: belongs to a capture; give feed.file as well";
            return Err(SettingsMistake::new("feed.arbitrate", why));
        }
        if self.file.is_some() && self.mold.is_some() {
            let why = "feed.file and feed.mold: give one of them";
            return Err(SettingsMistake::new("feed.mold", why));
        }
        self.check_pace()?;
        self.check_mold()
    }

    /// A feed has one pace.
    fn check_pace(&self) -> Result<(), SettingsMistake> {
        let (rate, fit) = (self.rate.is_some(), self.fit.is_some());
        // A speed of 1 is the default, so it does not count as a choice of the user.
        let speed = self.speed != 1.0;
        if self.mold.is_some() && (rate || fit) {
            let key = if rate { "feed.rate" } else { "feed.fit" };
            let why = format!("{key}: a live feed comes at its own times; leave this key out");
            return Err(SettingsMistake::new(key, why));
        }
        let mut given = [("feed.rate", rate), ("feed.fit", fit), ("feed.speed", speed)]
            .into_iter()
            .filter_map(|(key, given)| given.then_some(key));
        if let (Some(first), Some(second)) = (given.next(), given.next()) {
            let why = format!("{first} and {second}: each sets the pace; leave out one");
            return Err(SettingsMistake::new(second, why));
        }
        if self.silence.is_some() && (self.mold.is_some() || rate || fit) {
            let why = "feed.silence: cuts the silences of a replay by own times at a given speed; \
                       leave out feed.mold, feed.rate and feed.fit";
            return Err(SettingsMistake::new("feed.silence", why));
        }
        Ok(())
    }

    fn check_mold(&self) -> Result<(), SettingsMistake> {
        let of_mold = [
            ("feed.mold_b", self.mold_b.is_some()),
            ("feed.mold_request", self.mold_request.is_some()),
            ("feed.mold_interface", self.mold_interface.is_some()),
            ("feed.mold_from", self.mold_from.is_some()),
            ("feed.mold_sources", !self.mold_sources.is_empty()),
        ];
        if let (None, Some((key, _))) = (self.mold, of_mold.iter().find(|(_, given)| *given)) {
            let why = format!("{key}: belongs to a live feed; give feed.mold as well");
            return Err(SettingsMistake::new(*key, why));
        }
        if self.mold.is_some() && self.mold == self.mold_b {
            let why = "feed.mold_b: is the address of feed.mold; give side B another address";
            return Err(SettingsMistake::new("feed.mold_b", why));
        }
        if self.mold_hold_messages == 0 || self.mold_hold_bytes == 0 {
            let why = "feed.mold_hold_messages and feed.mold_hold_bytes must be above 0: what is \
                       held behind a hole is at least one message";
            return Err(SettingsMistake::new("feed.mold_hold_messages", why));
        }
        if self.mold_from == Some(0) {
            let why = "feed.mold_from = 0: MoldUDP64 sequences begin at 1";
            return Err(SettingsMistake::new("feed.mold_from", why));
        }
        Ok(())
    }

    /// The first address that listens to more than this machine.
    pub fn open_address(&self) -> Option<(&'static str, SocketAddr)> {
        let on_loopback = |address: &SocketAddr| {
            // A multicast group on a loopback interface stays on this machine.
            let interface = self.mold_interface.is_some_and(|interface| interface.is_loopback());
            address.ip().is_loopback() || address.ip().is_multicast() && interface
        };
        [("mold", self.mold), ("mold_b", self.mold_b), ("mold_request", self.mold_request)]
            .into_iter()
            .filter_map(|(key, address)| Some((key, address?)))
            .find(|(_, address)| !on_loopback(address))
    }

    /// Refuses a live feed that listens to more than this machine, when there is no key.
    ///
    /// # Errors
    /// A message with the address and the remedy.
    pub fn check_closed(&self, keyed: bool) -> Result<(), SettingsMistake> {
        match self.open_address().filter(|_| !keyed) {
            None => Ok(()),
            Some((key, address)) => {
                let why = format!("feed.{key} = {address}: {OPEN}");
                Err(SettingsMistake::new(format!("feed.{key}"), why))
            }
        }
    }

    /// Relative paths begin from here.
    pub fn rebase(&mut self, base: &Path) {
        self.file = self.file.take().map(|file| base.join(file));
    }
}
