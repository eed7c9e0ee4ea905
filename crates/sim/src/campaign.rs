//! A campaign: a protocol, the faults of each seed, the checks that must hold, and mutants.
//!
//! A test with faults has four parts that differ from protocol to protocol: the scene that a seed
//! draws, the run of that scene, the checks that watch the run, and the mutants that prove that the
//! checks see something. [`Campaign`] asks for these four. [`AnyCampaign`], which every campaign
//! is, has the rest:
//!
//! - [`prove`](AnyCampaign::prove) runs the seeds on all cores and stops at the first that fails.
//!   `prove` counts the faults that the seeds exercised, and refuses a campaign that is too mild.
//!   `prove` also runs the seeds that once failed, and runs some seeds again when nothing else
//!   runs, because one seed must give one run at any load;
//! - [`catch`](AnyCampaign::catch) runs every mutant until the check that is meant for the mutant
//!   catches it;
//! - [`replay`](AnyCampaign::replay) tells everything that happens under one seed. When the seed
//!   fails, the replay leaves out faults as long as the seed still fails.
//!
//! A mutant is a real machine behind an [`Alteration`](crate::Alteration), which changes what goes
//! into the machine and what comes out. Production code has no switches for mutants.
//!
//! # Another protocol
//!
//! A protocol becomes a machine with a campaign in three steps, here for a second protocol of
//! consensus beside Canopus. Five files change:
//!
//! 1. **The machine**: `crates/consensus/machine/src/NAME.rs`, and its `pub mod` in `lib.rs` there.
//!    A second protocol for a task that a room has already is a module of that room's machine
//!    crate, and changes no manifest. A task without a room gets a folder: `crates/NAME/machine`
//!    with a manifest like that of `crates/consensus/machine`, a line on the map of
//!    ARCHITECTURE.md, a line in `lab/campaigns/Cargo.toml`, and in `Cargo.toml` its path and
//!    `[profile.dev.package.evenfall-NAME-machine] opt-level = 2`, because campaigns run in tests.
//! 2. **The campaign**: `lab/campaigns/src/consensus/NAME.rs`, and its `pub mod` in
//!    `lab/campaigns/src/consensus/mod.rs`.
//! 3. **The list**: its value in `CAMPAIGNS` of `lab/campaigns/src/lib.rs`. `make test` and
//!    `make test-long` then prove the campaign, and
//!    `evenfall sim campaign NAME --seed N --mutant M` prints the events of a seed.
//!
//! Begin from one of two examples, each with machine, mutants and campaign in one file that runs:
//! `tests/durable.rs` beside this crate writes before it sends, as consensus has to, on a disk that
//! tears and fills up; `tests/campaign.rs` has no disk. The first imports everything that a
//! campaign uses. `lab/campaigns/src/consensus/mod.rs` shows what many nodes need beyond that: a
//! tree of nodes that the seed draws, a disk for each, and clients (`World::invoke_at`, then
//! `Observer::invoke`). `lab/campaigns/src/consensus/rivals/faults.rs` is a whole campaign of other
//! protocols of consensus, without a disk: `executed` makes cycles of Canopus out of what they
//! executed, so that the checks of Canopus judge their writes and reads.
//!
//! What the machine has to know:
//!
//! - The contract is the page of [`evenfall_core::machine`]. The world asserts the contract, and
//!   panics with the name of a machine that breaks it.
//! - A promise is on the disk before it is sent. [`evenfall_core::journal`] is the log for that:
//!   each record is added with its effects, and `handle_written` gives the effects back when the
//!   record survives a crash. Records have checksums. A node that comes back reads the whole
//!   records and goes on behind them (`Journal::open`), which cuts a torn tail off. The journal
//!   repeats writes that a full disk refused (`handle_timeout`, `poll_timeout`).
//! - Time and randomness come from outside: `now`, and a [`Prng`](evenfall_core::Prng) of the seed.
//!   Maps are ordered. Every queue has a limit. A datagram may have any bytes, and bad bytes give
//!   `Malformed`, never a panic. The `fuzzing.rs` of the machine's crate calls each decoder.
//!
//! What the campaign has to know:
//!
//! - Each word of `Check` needs a mutant that it catches, and each word of `Mutant` a [`Trap`] in
//!   the outline; `lab/campaigns/tests/campaigns.rs` fails otherwise. The range of a trap's seeds
//!   ends at a small multiple of the seed that `catch` prints. An alteration changes arrivals,
//!   transmits, writes, clock readings and events. What a mutant changes in the owner, such as
//!   answering a read too early, is done by the campaign's observer.
//! - Checks look at what machines told their owners ([`Observer`](crate::Observer)) and at disks,
//!   never inside a machine. `Observer::revive` makes the machine of a node that comes back, out of
//!   its disk alone.
//! - [`Bounds`](crate::Bounds) says what may happen, by default everything that hosts and networks
//!   do ([`FaultKind::OF_HOSTS`]), between 0.1 and 1 s. [`Victims`](crate::Victims) names the nodes
//!   that faults may hit, and knobs draw sizes. Faults that can end do so within that time. The run
//!   goes on afterwards, and one check demands that everything works again.
//! - `counts_min` demands that the seeds exercise what the campaign is for: crashes, elections,
//!   full disks. Without these counts a protocol that does nothing passes.
//! - The load lasts as long as the window. Faults that hit an idle protocol prove nothing.

pub mod seeds;

use core::any::type_name;
use core::fmt;
use core::ops::Range;

pub use seeds::{Seeds, SeedsProgress};

use crate::faults::{Coverage, Fault, FaultKind, Plan};
use crate::{NodeIndex, SimTime};

/// Seeds that [`AnyCampaign::prove`] runs a second time while no other seed runs, to check that
/// they give the same run as before.
const REPEATED: u64 = 3;

/// Makes enums of checks and mutants [`NamedVariant`]s: the documentation of each variant is what
/// lists say about the variant.
///
/// ```
/// use evenfall_sim::campaign::NamedVariant;
///
/// evenfall_sim::named_variants! {
///     /// What must hold.
///     pub enum Check {
///         /// No message comes twice.
///         OnlyOnce,
///     }
/// }
/// assert_eq!(Check::OnlyOnce.name(), "only-once");
/// assert_eq!(Check::OnlyOnce.about(), "No message comes twice.");
/// ```
#[macro_export]
macro_rules! named_variants {
    ($($(#[doc = $about:literal])+ $vis:vis enum $name:ident {
        $($(#[doc = $text:literal])+ $word:ident,)+
    })+) => {$(
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        $vis enum $name {
            $($(#[doc = $text])+ $word,)+
        }

        impl $crate::campaign::NamedVariant for $name {
            const ALL: &'static [Self] = &[$(Self::$word),+];

            fn about(self) -> &'static str {
                match self {
                    $(Self::$word => concat!($($text),+).trim_start(),)+
                }
            }
        }
    )+};
}

/// A check or a mutant, with a name for the command line and a sentence. See [`named_variants!`].
pub trait NamedVariant: Copy + Ord + fmt::Debug + Send + Sync + 'static {
    /// All words of the enum, in order.
    const ALL: &'static [Self];

    /// The demand of the check, or the fault of the mutant.
    fn about(self) -> &'static str;

    /// The variant in lower case with hyphens: `ReleasesTwice` is `releases-twice`.
    fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }
}

/// Something that must not happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation<C> {
    /// The check that saw the violation.
    pub check: C,
    /// Where and when something happened, and what.
    pub what: String,
}

impl<C: NamedVariant> Violation<C> {
    /// A violation at a time on a node.
    pub fn at(check: C, at: SimTime, node: NodeIndex, what: impl fmt::Display) -> Self {
        Self { check, what: format!("at {at} on {node}: {what}") }
    }
}

impl<C: NamedVariant> fmt::Display for Violation<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.check.name(), self.what)
    }
}

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run<C> {
    /// The violations that the checks saw; empty when every check held.
    pub violations: Vec<Violation<C>>,
    /// Equal runs have equal digests.
    pub digest: u64,
    /// Counts of what happened in the run, by name. A campaign adds the counts of its runs up.
    pub counts: Vec<(&'static str, u64)>,
    /// The run as a text; empty unless the story was asked for.
    pub story: String,
}

impl<C> Default for Run<C> {
    fn default() -> Self {
        Self { violations: Vec::new(), digest: 0, counts: Vec::new(), story: String::new() }
    }
}

impl<C> Run<C> {
    /// Notes a violation unless the check holds.
    pub fn expect(&mut self, check: C, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation { check, what: what() });
        }
    }
}

/// A mutant, the check that must catch the mutant, and seeds. Under one of the seeds at least, the
/// check must catch the mutant. The range of a mutant that is caught seldom begins shortly before
/// the first seed that catches it, so that a test need not run the seeds before.
pub type Trap<M, C> = (M, C, Range<u64>);

/// The fixed parts of a campaign.
#[derive(Clone, Copy, Debug)]
pub struct Outline<M: 'static, C: 'static> {
    /// The word by which commands call the campaign.
    pub name: &'static str,
    /// The protocol and its faults, in one sentence.
    pub about: &'static str,
    /// Seeds of an ordinary test run.
    pub seeds: u64,
    /// Seeds that once failed, besides those of an ordinary test run.
    pub once_failed: &'static [u64],
    /// Faults that must occur within an ordinary test run.
    pub kinds: &'static [FaultKind],
    /// Counts of [`Run::counts`] with what each must come to within an ordinary test run.
    pub counts_min: &'static [(&'static str, u64)],
    /// The mutants.
    pub mutants: &'static [Trap<M, C>],
}

/// A protocol under faults.
pub trait Campaign: Sync {
    /// What must hold.
    type Check: NamedVariant;
    /// The mutants of the machines.
    type Mutant: NamedVariant;
    /// The scene that a seed draws: topology, load and faults. A replay may leave faults out of its
    /// plan.
    type Scene: AsMut<Plan>;

    /// The fixed parts of the campaign.
    fn outline(&self) -> Outline<Self::Mutant, Self::Check>;

    /// The first seed that says nothing new. Seeds of a quiet network, for instance, differ in
    /// little but their clocks, so that a few of them say everything.
    fn seeds_max(&self) -> u64 {
        u64::MAX
    }

    /// Draws the scene of a seed.
    fn scene(&self, seed: u64) -> Self::Scene;

    /// Runs a scene under the eyes of all checks. `story` asks for [`Run::story`].
    fn run(
        &self,
        scene: &Self::Scene,
        mutant: Option<Self::Mutant>,
        story: bool,
    ) -> Run<Self::Check>;
}

/// The replay of one seed as a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The plan and everything that happened.
    pub story: String,
    /// The violations, a line each, or the words of a panic.
    pub violations: Vec<String>,
    /// The faults under which the first violation still happens; empty without a violation.
    pub suffices: String,
    /// Equal runs have equal digests; 0 after a panic.
    pub digest: u64,
    /// Counts of what happened in the run, by name.
    pub counts: Vec<(&'static str, u64)>,
}

/// A mutant that was caught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caught {
    /// The mutant.
    pub mutant: String,
    /// The check that caught the mutant.
    pub check: String,
    /// The first seed under which it did.
    pub seed: u64,
}

/// Any [`Campaign`], whatever its types: all that a command or a test does with one.
pub trait AnyCampaign: Sync {
    /// The word by which commands call the campaign.
    fn name(&self) -> &'static str;

    /// Seeds of an ordinary test run.
    fn seeds(&self) -> u64;

    /// The first seed that says nothing new: [`Campaign::seeds_max`].
    fn seeds_max(&self) -> u64;

    /// Every check, by the name of its type and its own, and whether a mutant proves the check.
    fn checks(&self) -> Vec<(String, bool)>;

    /// Every mutant, by the name of its type and its own, and whether the campaign runs the mutant.
    fn mutants(&self) -> Vec<(String, bool)>;

    /// What the campaign is, with its checks and its mutants, as lines for a terminal.
    fn describe(&self) -> String;

    /// Runs these seeds, or those of an ordinary test run.
    ///
    /// # Errors
    /// The smallest seed that failed, with the command that replays the seed; or the faults and
    /// counts that the seeds should have exercised and did not. This second check needs at least
    /// the seeds of an ordinary test run.
    fn prove(
        &self,
        seeds: Option<Range<u64>>,
        progress: &mut dyn FnMut(SeedsProgress),
    ) -> Result<Coverage, String>;

    /// Runs every mutant until its check catches it.
    ///
    /// # Errors
    /// The mutant that was not caught.
    fn catch(&self) -> Result<Vec<Caught>, String>;

    /// Tells one seed.
    ///
    /// # Errors
    /// When the campaign has no mutant of this name.
    fn replay(&self, seed: u64, mutant: Option<&str>) -> Result<Replay, String>;
}

impl<C: Campaign> AnyCampaign for C {
    fn name(&self) -> &'static str {
        self.outline().name
    }

    fn seeds(&self) -> u64 {
        self.outline().seeds
    }

    fn seeds_max(&self) -> u64 {
        Campaign::seeds_max(self)
    }

    fn checks(&self) -> Vec<(String, bool)> {
        let mutants = self.outline().mutants;
        used(|check| mutants.iter().any(|(_, by, _)| *by == check))
    }

    fn mutants(&self) -> Vec<(String, bool)> {
        let mutants = self.outline().mutants;
        used(|mutant| mutants.iter().any(|(run, ..)| *run == mutant))
    }

    fn describe(&self) -> String {
        let outline = self.outline();
        let mut text = format!("{}: {}\n  checks\n", outline.name, outline.about);
        for check in C::Check::ALL {
            text += &format!("    {:<24} {}\n", check.name(), check.about());
        }
        text += "  mutants, each with its check and the seeds within which the check catches it\n";
        for (mutant, check, seeds) in outline.mutants {
            let seeds = seeds.end - seeds.start;
            let (name, caught) = (mutant.name(), format!("{}, {seeds}", check.name()));
            text += &format!("    {name:<24} {caught:<18} {}\n", mutant.about());
        }
        text
    }

    fn prove(
        &self,
        seeds: Option<Range<u64>>,
        progress: &mut dyn FnMut(SeedsProgress),
    ) -> Result<Coverage, String> {
        let outline = self.outline();
        let range = seeds.unwrap_or(0..outline.seeds);
        let (mut coverage, mut repeated) = (Coverage::default(), Vec::new());
        let examine = |seed| examine(self, seed);
        let take = |seed, one: Coverage| {
            coverage.merge(&one);
            repeated.extend((seed - range.start < REPEATED).then_some((seed, one)));
        };
        let failed = Seeds::new(range.clone()).run(examine, take, progress);
        if let Some((seed, why)) = failed.into_iter().next() {
            return Err(failure(self, seed, &why));
        }
        for seed in outline.once_failed.iter().filter(|seed| !range.contains(seed)) {
            seeds::one(|| examine(*seed)).map_err(|why| failure(self, *seed, &why))?;
        }
        repeated.sort_unstable_by_key(|(seed, _)| *seed);
        for (seed, beside) in repeated {
            let alone = seeds::one(|| examine(seed)).map_err(|why| failure(self, seed, &why))?;
            if alone != beside {
                let (beside, alone) = (beside.digest, alone.digest);
                let why =
                    format!("its digest beside other runs is {beside:016x}, alone {alone:016x}");
                return Err(failure(self, seed, &why));
            }
        }
        if range.end - range.start >= outline.seeds {
            coverage.demand(outline.kinds, outline.counts_min).map_err(|mild| {
                format!("campaign {}: too mild: {mild}\n{coverage}", self.name())
            })?;
        }
        Ok(coverage)
    }

    fn catch(&self) -> Result<Vec<Caught>, String> {
        let catch = |(mutant, check, seeds): &Trap<C::Mutant, C::Check>| {
            let (mutant, check) = (*mutant, *check);
            let caught = |seed| match trial(self, &self.scene(seed), Some(mutant), false) {
                Ok(run) if run.violations.iter().any(|v| v.check == check) => Err(String::new()),
                _ => Ok(()),
            };
            let first =
                Seeds::new(seeds.clone()).run(caught, |_, ()| {}, |_| {}).into_iter().next();
            let (mutant, check) = (mutant.name(), check.name());
            match first {
                Some((seed, _)) => Ok(Caught { mutant, check, seed }),
                None => Err(format!(
                    "campaign {}: the mutant {mutant} was not caught by the check {check} under \
                     any of the seeds {seeds:?}",
                    self.name()
                )),
            }
        };
        self.outline().mutants.iter().map(catch).collect()
    }

    fn replay(&self, seed: u64, mutant: Option<&str>) -> Result<Replay, String> {
        let mutant = mutant.map(|name| by_name(self, name)).transpose()?;
        let mut scene = self.scene(seed);
        let plan = scene.as_mut().to_string();
        let (run, panic) = match trial(self, &scene, mutant, true) {
            Ok(run) => (run, None),
            Err(panic) => (Run::default(), Some(panic)),
        };
        let mut violations: Vec<_> = run.violations.iter().map(ToString::to_string).collect();
        violations.extend(panic);
        let suffices = match violations.is_empty() {
            true => String::new(),
            false => shrink(self, seed, mutant, run.violations.first().map(|v| v.check)),
        };
        let story = plan + &run.story;
        Ok(Replay { story, violations, suffices, digest: run.digest, counts: run.counts })
    }
}

/// Every word of a type, by the name of the type and its own, and whether it is used.
fn used<W: NamedVariant>(is_used: impl Fn(W) -> bool) -> Vec<(String, bool)> {
    let name = |word: W| format!("{} {}", type_name::<W>(), word.name());
    W::ALL.iter().map(|word| (name(*word), is_used(*word))).collect()
}

/// Runs a scene; `Err` has the words of a panic.
fn trial<C: Campaign>(
    campaign: &C,
    scene: &C::Scene,
    mutant: Option<C::Mutant>,
    story: bool,
) -> Result<Run<C::Check>, String> {
    seeds::one(|| Ok(campaign.run(scene, mutant, story)))
}

/// Runs a seed without a mutant.
fn examine<C: Campaign>(campaign: &C, seed: u64) -> Result<Coverage, String> {
    let mut scene = campaign.scene(seed);
    let run = campaign.run(&scene, None, false);
    if !run.violations.is_empty() {
        let lines: Vec<_> = run.violations.iter().map(ToString::to_string).collect();
        return Err(lines.join("\n  "));
    }
    let mut coverage = Coverage::default();
    coverage.add(scene.as_mut());
    coverage.note(seed, run.digest, &run.counts);
    Ok(coverage)
}

/// The error for a seed that fails.
fn failure<C: Campaign>(campaign: &C, seed: u64, why: &str) -> String {
    let name = campaign.name();
    let check = match trial(campaign, &campaign.scene(seed), None, false) {
        Ok(run) => run.violations.first().map(|violation| Some(violation.check)),
        // A panic, which no check saw.
        Err(_) => Some(None),
    };
    // Two runs that differ, and no violation: there is nothing to look for with fewer faults.
    let alone = check.map_or_else(String::new, |check| {
        let faults = shrink(campaign, seed, None, check);
        format!("The seed still fails with these faults alone:\n{faults}")
    });
    format!(
        "campaign {name}: seed {seed} failed:\n  {why}\n{alone}\
         replay: evenfall sim campaign {name} --seed {seed}"
    )
}

fn by_name<C: Campaign>(campaign: &C, name: &str) -> Result<C::Mutant, String> {
    let mutants = || campaign.outline().mutants.iter().map(|trap| trap.0);
    mutants().find(|mutant| mutant.name() == name).ok_or_else(|| {
        let names: Vec<_> = mutants().map(NamedVariant::name).collect();
        let campaign = campaign.name();
        format!("campaign {campaign} has no mutant {name:?}; it has {}", names.join(", "))
    })
}

/// Leaves out faults as long as the same check still sees a violation, or the run still panics.
/// The beginning and the end of an outage go together.
fn shrink<C: Campaign>(
    campaign: &C,
    seed: u64,
    mutant: Option<C::Mutant>,
    check: Option<C::Check>,
) -> String {
    let fails = |faults: &[(SimTime, Fault)]| {
        let mut scene = campaign.scene(seed);
        scene.as_mut().faults = faults.to_vec();
        match trial(campaign, &scene, mutant, false) {
            Ok(run) => run.violations.iter().any(|violation| Some(violation.check) == check),
            Err(_) => check.is_none(),
        }
    };
    let mut kept = campaign.scene(seed).as_mut().faults.clone();
    loop {
        let before = kept.len();
        for outage in kept.iter().map(|(_, fault)| fault.outage()).collect::<Vec<_>>() {
            let fewer: Vec<_> =
                kept.iter().filter(|(_, fault)| fault.outage() != outage).cloned().collect();
            if fewer.len() < kept.len() && fails(&fewer) {
                kept = fewer;
            }
        }
        if kept.len() == before {
            return kept.iter().map(|(at, fault)| format!("  {at} {fault:?}\n")).collect();
        }
    }
}
