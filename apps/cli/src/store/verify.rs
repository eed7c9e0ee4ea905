//! `evenfall store verify`: checks that every byte is as it was written, that a recording equals
//! its feed, and that a root signed it.

#[cfg(feature = "signing")]
mod signed;
#[cfg(not(feature = "signing"))]
mod signed {
    use super::{Outcome, RecordSource, Verify};

    pub fn check_signatures(_: &dyn RecordSource, _: &Verify) -> Outcome {
        Err(crate::missing::words("signatures", "signing").into())
    }
}

use std::path::PathBuf;

use evenfall_feed_service::input;
use evenfall_store_engine::{Archive, RecordSource, clean_shutdown};
use evenfall_store_recording::Catalog;
use evenfall_store_recording::verify::{FeedComparison, compare_with_feed};

use super::{expect_store, feed_of, objects_at, open_to_read};
use crate::Outcome;

/// Arguments of `evenfall store verify`.
#[derive(clap::Args, Debug)]
pub struct Verify {
    /// The store's directory; with --objects, the directory of its objects.
    dir: PathBuf,
    /// Check only the objects.
    #[arg(long)]
    objects: bool,
    /// Compare a recording with this feed, byte for byte.
    #[arg(long)]
    feed: Option<PathBuf>,
    /// Check that a root signed a recording: the public key of the root or of a standby, as
    /// `evenfall key new --signing` prints it, or the file that it writes. Each key is given by a
    /// --signer of its own.
    #[arg(long = "signer", value_name = "KEY")]
    signers: Vec<String>,
    /// Name of the recording.
    #[arg(long, default_value = "feed")]
    name: String,
    /// The store was left by a crash: accept a torn end of a journal, a recording that ends before
    /// its feed, and messages behind the last signature.
    #[arg(long)]
    partial: bool,
}

pub fn verify(args: &Verify) -> Outcome {
    let seen = match args.objects {
        true => clean_shutdown::verify_archive(&objects_at(&args.dir)?)?,
        false => {
            expect_store(&args.dir)?;
            clean_shutdown::verify_directory(&args.dir)?
        }
    };
    // A check of nothing must not end as a success.
    if args.objects && seen.bytes == 0 {
        return Err(format!("{}: no object is there to verify", args.dir.display()).into());
    }
    let commits = if seen.commits == 1 { "commit" } else { "commits" };
    say!("{} segments, {} {commits}, {} bytes", seen.segments, seen.commits, seen.bytes);
    let mut damaged = 0;
    for finding in &seen.findings {
        let is_excused = finding.is_torn_end && args.partial;
        damaged += u64::from(!is_excused);
        let kind = if is_excused { "note: torn by the crash: " } else { "" };
        say!("  {kind}{}: {}", finding.place, finding.what);
    }
    for other in &seen.others {
        say!("  note: {other} is not a file of the store; its bytes prove nothing");
    }
    if damaged > 0 {
        let torn = seen.findings.iter().filter(|finding| finding.is_torn_end).count();
        let hint = match torn {
            0 => "",
            _ => "; a crash may leave this: --partial accepts torn ends",
        };
        return Err(format!("{damaged} places are not as they were written{hint}").into());
    }
    if args.feed.is_none() && args.signers.is_empty() {
        return Ok(());
    }
    let source: Box<dyn RecordSource> = match args.objects {
        true => Box::new(Archive::open(&objects_at(&args.dir)?)?),
        false => Box::new(open_to_read(&args.dir)?),
    };
    let catalog = Catalog::read(&*source)?;
    if catalog.recording(&args.name).is_none() {
        let there: Vec<&str> = catalog.recordings().map(|files| &files.name[..]).collect();
        let name = &args.name;
        return Err(match there.is_empty() {
            true => format!("there is no recording {name}, and no other recording").into(),
            false => format!(
                "there is no recording {name}: name it with --name; there are: {}",
                there.join(", ")
            )
            .into(),
        });
    }
    if let Some(feed) = &args.feed {
        let mut feed = input::open(&feed_of(feed))?;
        judge(&compare_with_feed(&*source, &args.name, &mut feed)?, args)?;
    }
    if args.signers.is_empty() {
        return Ok(());
    }
    signed::check_signatures(&*source, args)
}

fn judge(seen: &FeedComparison, args: &Verify) -> Outcome {
    let (name, equal) = (&args.name, seen.equal);
    if let Some(difference) = &seen.difference {
        let words = format!("recording {name}: {equal} messages are equal, then {difference}");
        return Err(words.into());
    }
    if seen.missing == 0 {
        say!("recording {name} equals the feed: {equal} messages, blake3 {}", seen.hash);
        return Ok(());
    }
    let of = equal + seen.missing;
    let mut words = format!("recording {name} holds the first {equal} of {of} messages, equal");
    if seen.behind_gap > 0 {
        words.push_str(&format!("; {} more behind a gap", seen.behind_gap));
    }
    if !args.partial {
        return Err(format!("{words}; --partial accepts this after a crash").into());
    }
    say!("{words}");
    Ok(())
}
