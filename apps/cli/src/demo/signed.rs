//! The demo's option `--signed`: makes the keys of the roots, and counts what the receivers
//! verified.

use std::path::Path;

use evenfall_multicast_service::Settings;
use evenfall_multicast_service::settings::{MulticastNode, RoleName};
use serde_json::{Map, Value};

use super::{Args, last_root, processes, summary};
use crate::key::make_signing_key_file;

/// What the names of the files of signing keys begin with.
pub const KEY_FILES: &str = "signing-";

/// The file of the signing key of a root.
pub fn key_file(node: &MulticastNode) -> Option<String> {
    let is_root = matches!(node.role, RoleName::Root | RoleName::Standby);
    is_root.then(|| format!("{KEY_FILES}{}.key", node.name))
}

/// Makes a key for each root, and lets the receivers know the public halves.
pub fn make_keys(dir: &Path, settings: &mut Settings) -> Result<(), String> {
    for file in settings.nodes.iter().filter_map(key_file) {
        settings.trust.signers.push(make_signing_key_file(&dir.join(file))?);
    }
    Ok(())
}

/// The signatures of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SignedRun {
    /// Messages that the root signed.
    signed: u64,
    /// Messages that receivers verified, over all receivers.
    verified: u64,
    /// Messages that receivers released, over all receivers.
    released: u64,
    breaks: u64,
    /// From the arrival of a frame until it was verified, over all frames and receivers.
    verify_ns_sum: u64,
    verify_ns_max: u64,
    frames: u64,
    /// Receivers that released messages which they did not verify.
    unverified: Vec<String>,
}

impl SignedRun {
    /// What the summaries of roots and receivers say; `None` for a feed without signatures. A
    /// process that was killed wrote none.
    pub fn of(args: &Args, settings: &Settings) -> Option<Self> {
        if !settings.trust.checks() {
            return None;
        }
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let trees = |summary: &Value| summary["trees"].as_array().cloned().unwrap_or_default();
        let mut all = Self::default();
        for tree in trees(&last_root(args, settings)) {
            all.signed +=
                if number(&tree["signatures"]) > 0 { number(&tree["messages"]) } else { 0 };
        }
        for node in processes::receivers(settings) {
            let before = (all.released, all.verified);
            for tree in trees(&summary(args, &node.name)) {
                let trust = &tree["trust"];
                all.released += number(&tree["tally"]["released"]);
                all.verified += number(&trust["verified"]);
                all.breaks += number(&trust["breaks"]);
                all.frames += number(&trust["frames"]);
                all.verify_ns_sum += number(&trust["verify_ns_sum"]);
                all.verify_ns_max = all.verify_ns_max.max(number(&trust["verify_ns_max"]));
            }
            if all.released - before.0 != all.verified - before.1 {
                all.unverified.push(node.name.clone());
            }
        }
        Some(all)
    }

    fn verify_us(&self) -> f64 {
        self.verify_ns_sum as f64 / 1e3 / self.frames.max(1) as f64
    }

    /// The fields of the demo's JSON object.
    pub fn to_json(&self) -> Map<String, Value> {
        let fields = [
            ("signed", self.signed.into()),
            ("verified", self.verified.into()),
            ("verify_us", self.verify_us().into()),
            ("verify_us_max", (self.verify_ns_max as f64 / 1e3).into()),
            ("breaks", self.breaks.into()),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// A line for people.
    pub fn say(&self) -> String {
        let Self { signed, verified, released, breaks, .. } = self;
        format!(
            "signed: {signed} messages; receivers verified {verified} of {released} released, \
             {:.0} us after their arrival (mean), {breaks} breaks",
            self.verify_us()
        )
    }

    /// Checks that every released message was verified, and that there were some.
    pub fn check(&self) -> Result<(), String> {
        if self.breaks > 0 || self.signed > 0 && self.verified == 0 {
            return Err(self.say());
        }
        match self.unverified.is_empty() {
            true => Ok(()),
            false => {
                let names = self.unverified.join(", ");
                Err(format!("messages were released that their receivers did not verify: {names}"))
            }
        }
    }
}
