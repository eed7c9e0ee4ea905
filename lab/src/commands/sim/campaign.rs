//! `evenfall sim campaign`: runs the seeds of a fault campaign, or its mutants, or prints the
//! events of one seed.

use evenfall_campaigns::CAMPAIGNS;
use evenfall_runtime::program::Outcome;
use evenfall_runtime::progress::Progress;
use evenfall_sim::AnyCampaign;
use serde_json::{Map, Value, json};

/// Arguments of `evenfall sim campaign`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The campaign; --list names all campaigns.
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List campaigns with their checks and mutants: all of them, or the named one.
    #[arg(long, conflicts_with_all = ["seed", "seeds", "mutant", "mutants"])]
    list: bool,
    /// Print all events of this seed. With --seeds, the first seed to run.
    #[arg(long, value_parser = super::seeds::first_seed())]
    seed: Option<u64>,
    /// Run this many seeds. Without this option and --seed, the seeds of an ordinary test run.
    #[arg(
        long,
        conflicts_with = "mutant",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    seeds: Option<u64>,
    /// Run the seed with this mutant in place of the real machine.
    #[arg(long, requires = "seed")]
    mutant: Option<String>,
    /// Run every mutant until its check catches it.
    #[arg(long, conflicts_with_all = ["seed", "seeds", "mutant"])]
    mutants: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn main(args: &Args) -> Outcome {
    let named = args.name.as_deref().map(evenfall_campaigns::campaign).transpose()?;
    let Some(campaign) = named.filter(|_| !args.list) else {
        let listed = named.as_ref().map_or(CAMPAIGNS, std::slice::from_ref);
        list(listed, args.json);
        return Ok(());
    };
    match (args.seed, args.seeds) {
        _ if args.mutants => mutants(campaign, args.json),
        (Some(at), None) => seed(campaign, at, args.mutant.as_deref(), args.json),
        (first, seeds) => run(campaign, first.unwrap_or(0), seeds, args.json),
    }
}

fn list(campaigns: &[&dyn AnyCampaign], json: bool) {
    if json {
        let names: Vec<_> = campaigns.iter().map(|one| one.name()).collect();
        return say!("{}", json!({ "campaigns": names }));
    }
    for campaign in campaigns {
        say!("{}", campaign.describe());
    }
}

fn run(campaign: &dyn AnyCampaign, first: u64, seeds: Option<u64>, json: bool) -> Outcome {
    let shown = Progress::new();
    let end = first
        .checked_add(seeds.unwrap_or_else(|| campaign.seeds()))
        .ok_or("--seed and --seeds: the last seed must be below 2^64")?;
    shown.stage("running seeds", Some(end - first));
    let done = campaign.prove(Some(first..end), &mut |at| shown.at(at.done, at.of));
    shown.end();
    let coverage = done?;
    if json {
        let digest = format!("{:016x}", coverage.digest);
        let counts = counts(coverage.counts().map(|(name, sum, _)| (name, sum)));
        say!("{}", json!({ "seeds": coverage.runs, "digest": digest, "counts": counts }));
    } else {
        say!("{coverage}campaign {}: seeds {first}..{end} pass", campaign.name());
    }
    Ok(())
}

fn mutants(campaign: &dyn AnyCampaign, json: bool) -> Outcome {
    let all = campaign.catch()?;
    if json {
        let seeds = counts(all.iter().map(|one| (&*one.mutant, one.seed)));
        say!("{}", json!({ "caught_by_seed": seeds }));
    } else {
        for one in all {
            say!("{} is caught by {} under seed {}", one.mutant, one.check, one.seed);
        }
    }
    Ok(())
}

/// Prints the events of a seed. Fails when a check found a violation.
pub fn seed(campaign: &dyn AnyCampaign, seed: u64, mutant: Option<&str>, json: bool) -> Outcome {
    let replay = campaign.replay(seed, mutant)?;
    let digest = format!("{:016x}", replay.digest);
    let failed = replay.violations.len();
    if json {
        let (violations, counts) = (replay.violations, counts(replay.counts));
        let told = json!({
            "seed": seed, "digest": digest, "counts": counts, "violations": violations,
            "faults_that_suffice": replay.suffices,
        });
        say!("{told}");
    } else {
        say!("{}", replay.story);
        for (name, count) in replay.counts {
            say!("{count} {name}");
        }
        replay.violations.iter().for_each(|violation| say!("VIOLATION {violation}"));
        if failed > 0 {
            say!("The seed still fails with these faults alone:\n{}", replay.suffices);
        }
        say!("seed {seed}: {failed} violations, digest {digest}");
    }
    match failed {
        0 => Ok(()),
        _ => Err(format!("campaign {}: seed {seed}: {failed} violations", campaign.name()).into()),
    }
}

fn counts<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> Map<String, Value> {
    counts.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect()
}
