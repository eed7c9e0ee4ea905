//! `evenfall store verify --signer`: checks that a root signed a recording.

use std::fs::File;
use std::io::Read as _;

use evenfall_multicast_recorder::audit::{SignedRecording, audit_recording};
use evenfall_multicast_service::settings::TrustSettings;
use evenfall_store_engine::RecordSource;

use super::super::times::words;
use super::{Outcome, Verify};

/// Bytes of a file with a public key that are read at most. A key and its word have 73.
const KEY_FILE_BYTES_MAX: u64 = 4_096;

/// Compares a recording with its signatures, by the public keys that were given.
pub fn check_signatures(source: &dyn RecordSource, args: &Verify) -> Outcome {
    let signers = args.signers.iter().map(|given| read_signer(given));
    let signers = signers.collect::<Result<Vec<String>, _>>()?;
    let trust = TrustSettings { signers, ..TrustSettings::default() };
    let verifier = trust.load_verifier()?.ok_or("--signer: no key is given")?;
    judge_signed(&audit_recording(source, &args.name, &verifier)?, args)
}

/// The text of a public key, out of its file unless it is given itself.
fn read_signer(given: &str) -> Result<String, Box<dyn std::error::Error>> {
    if given.starts_with("ed25519:") {
        return Ok(given.to_owned());
    }
    let named = |error: std::io::Error| format!("--signer {given}: {error}");
    let mut text = String::new();
    let file = File::open(given).map_err(named)?;
    file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(named)?;
    Ok(text.trim().to_owned())
}

fn judge_signed(seen: &SignedRecording, args: &Verify) -> Outcome {
    let (name, counts) = (&args.name, &seen.counts);
    let signed = format!("{} messages in {} frames", counts.signed_messages, counts.signed);
    if let Some(broken) = &seen.broken {
        let time = broken.time_ns.map(|ns| format!(" (recorded at {})", words(ns)));
        let time = time.unwrap_or_default();
        return Err(format!("recording {name}: {signed} are signed, then {broken}{time}").into());
    }
    if counts.signatures == 0 {
        return Err(format!("recording {name} keeps no signatures: nothing was checked").into());
    }
    say!("recording {name}: {signed} are signed, by {} signatures", counts.signatures);
    if counts.unsigned_before > 0 {
        say!("  note: {} frames before the first signature are not", counts.unsigned_before);
    }
    if counts.missing_before > 0 {
        let missing = counts.missing_before;
        say!("  note: {missing} frames that the first signature covers were sent before");
    }
    let behind = [
        (counts.unsigned_behind, "frames behind the last signature are not signed"),
        (seen.unframed_messages, "messages belong to no recorded frame, and are not signed"),
    ];
    for (count, what) in behind.into_iter().filter(|(count, _)| *count > 0) {
        if !args.partial {
            let why = format!("recording {name}: {count} {what}");
            return Err(format!("{why}; --partial accepts this after a crash").into());
        }
        say!("  note: {count} {what}");
    }
    Ok(())
}
