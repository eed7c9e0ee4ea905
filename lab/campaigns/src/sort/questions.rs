//! The campaign of a standing group. Workers crash, come back, hang, are cut off and lose
//! datagrams, while a desk asks again and again. Every question ends in time, with an answer that
//! is right for the workers that it lists and that names the others.

use core::time::Duration;
use std::collections::VecDeque;

use evenfall_collectives_machine::ShuffleConfig;
use evenfall_collectives_machine::group::GroupSettings;
use evenfall_core::{Arrival, ClockReading, Machine, Malformed, Prng, Timestamp, Transmit};
use evenfall_query_burst::burst::Work;
use evenfall_query_burst::desk::made::{MadeFeed, play_rows};
use evenfall_query_burst::desk::plain::{PlainRows, answer_plainly};
use evenfall_query_burst::desk::recent::{RecentConfig, RecentRows};
use evenfall_query_burst::desk::{DeskAnswer, DeskAsk, DeskOutput, DeskQuestion, DeskWorkerPlan};
use evenfall_query_burst::standing::wire::{QUESTION_MAGIC, QuestionKind};
use evenfall_query_burst::standing::{
    AskedAnswer, AskerEvent, BurstAsker, BurstWorker, StandingConfig, WorkMachine, WorkerEvent,
};
use evenfall_sim::campaign::{Outline, Trap};
use evenfall_sim::{
    Alteration, Altered, Bounds, Bursts, Campaign, Fault, FaultKind, HostSpec, Late, NodeIndex,
    Observer, Plan, Rates, Run, Seen, SimTime, Transcript, Victims, Wire, World, named_variants,
};

named_variants! {
    /// The checks of a standing group.
    pub enum QuestionCheck {
        /// An answer is that of a plain program over the rows of the workers that it lists.
        Plain,
        /// Each worker is in the answer or missing, and not both.
        Accounted,
        /// Every question ends once, and within its time.
        EndsInTime,
        /// Where no worker was hit by a fault, none is missing.
        NamesTheHit,
        /// When all faults are over, the second question has all workers that live.
        Recovers,
    }
    /// Faults put into a node on purpose.
    pub enum QuestionMutant {
        /// A worker loses a row of its table.
        ChangesAnswer,
        /// The asker does not say who is missing.
        HidesMissing,
        /// The asker names a worker missing that is in the answer.
        NamesPresent,
        /// The asker does not tell the end of a question.
        HidesEnd,
        /// A worker that comes back answers no call.
        StaysAway,
        /// The asker leaves out a worker that nothing has hit.
        LeavesOutLiving,
    }
}

/// Questions during the faults, and after them.
const QUESTIONS: u64 = 5;
/// Time between two questions. It is longer than a question may take.
const EVERY: Duration = Duration::from_millis(700);
/// The longest that a question may take, and the slack of one more silence.
const WITHIN: Duration = Duration::from_millis(500);
/// How long a worker may be silent.
const SILENCE: Duration = Duration::from_millis(60);
/// A piece of work takes this long.
const WORK: Duration = Duration::from_micros(300);
/// When the first question is asked.
const FIRST: Duration = Duration::from_millis(50);
/// Seeds within which a mutant must be caught.
const MUTANT_SEEDS: u64 = 80;
/// Kinds of faults that must occur.
const KINDS: &[FaultKind] = &[
    FaultKind::Loss,
    FaultKind::Duplicate,
    FaultKind::Reorder,
    FaultKind::Crash,
    FaultKind::Restart,
    FaultKind::Pause,
    FaultKind::Partition,
    FaultKind::Bursts,
    FaultKind::OneWay,
    FaultKind::Late,
];

type DeskWorker = BurstWorker<DeskWorkerPlan<RecentRows>>;

/// A node, whose work takes a while.
struct StandingNode {
    machine: NodeMachine,
    under_way: VecDeque<(Timestamp, Work)>,
}

enum NodeMachine {
    Asker(Box<BurstAsker<DeskAsk>>),
    Worker(Box<DeskWorker>),
}

/// What a node tells.
#[derive(Debug)]
enum NodeEvent {
    Asker(AskerEvent<DeskOutput>),
    Worker(WorkerEvent),
}

impl StandingNode {
    fn new(machine: NodeMachine) -> Self {
        Self { machine, under_way: VecDeque::new() }
    }

    fn take_work(&mut self, now: Timestamp) {
        let next = |machine: &mut NodeMachine| match machine {
            NodeMachine::Asker(asker) => asker.poll_work(),
            NodeMachine::Worker(worker) => worker.poll_work(),
        };
        while let Some(work) = next(&mut self.machine) {
            self.under_way.push_back((now + WORK, work));
        }
    }

    fn ask(&mut self, now: Timestamp, ask: DeskAsk) {
        if let NodeMachine::Asker(asker) = &mut self.machine {
            // The earlier question has ended long ago; where it has not, the check says so.
            let _ = asker.ask(now, ask);
        }
        self.take_work(now);
    }
}

impl Machine for StandingNode {
    type Event = NodeEvent;

    fn handle(&mut self, now: Timestamp, arrival: Arrival) -> Result<(), Malformed> {
        let result = match &mut self.machine {
            NodeMachine::Asker(asker) => asker.handle(now, arrival),
            NodeMachine::Worker(worker) => worker.handle(now, arrival),
        };
        self.take_work(now);
        result
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        match &mut self.machine {
            NodeMachine::Asker(asker) => asker.handle_timeout(now),
            NodeMachine::Worker(worker) => worker.handle_timeout(now),
        }
        while self.under_way.front().is_some_and(|(ends, _)| *ends <= now) {
            let Some((_, work)) = self.under_way.pop_front() else { break };
            match &mut self.machine {
                NodeMachine::Asker(asker) => asker.handle_work(now, work.run()),
                NodeMachine::Worker(worker) => worker.handle_work(now, work.run()),
            }
        }
        self.take_work(now);
    }

    fn handle_clock(&mut self, _: Timestamp, _: ClockReading) {}

    fn poll_event(&mut self) -> Option<NodeEvent> {
        match &mut self.machine {
            NodeMachine::Asker(asker) => asker.poll_event().map(NodeEvent::Asker),
            NodeMachine::Worker(worker) => worker.poll_event().map(NodeEvent::Worker),
        }
    }

    fn poll_transmit(&mut self, now: Timestamp) -> Option<Transmit> {
        match &mut self.machine {
            NodeMachine::Asker(asker) => asker.poll_transmit(now),
            NodeMachine::Worker(worker) => worker.poll_transmit(now),
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let due = match &self.machine {
            NodeMachine::Asker(asker) => asker.poll_timeout(),
            NodeMachine::Worker(worker) => worker.poll_timeout(),
        };
        due.into_iter().chain(self.under_way.front().map(|(ends, _)| *ends)).min()
    }
}

/// Changes what a node sends and tells.
struct QuestionAlteration(QuestionMutant);

impl Alteration<StandingNode> for QuestionAlteration {
    fn sends(&mut self, transmit: &mut Transmit) -> bool {
        let head = transmit.head.as_slice();
        let is_here = head.starts_with(&QUESTION_MAGIC) && head[3] == QuestionKind::Here as u8;
        !(self.0 == QuestionMutant::StaysAway && is_here)
    }

    fn event(&mut self, mut event: NodeEvent, out: &mut VecDeque<NodeEvent>) {
        if let NodeEvent::Asker(AskerEvent::Answered(answer)) = &mut event {
            match self.0 {
                QuestionMutant::HidesEnd => return,
                QuestionMutant::HidesMissing => answer.missing.clear(),
                QuestionMutant::NamesPresent => repeat_missing(answer),
                QuestionMutant::LeavesOutLiving => leave_out_first(answer),
                QuestionMutant::ChangesAnswer => change_answer(answer),
                QuestionMutant::StaysAway => {}
            }
        }
        out.push_back(event);
    }
}

fn repeat_missing(answer: &mut AskedAnswer<DeskOutput>) {
    if let (Some(worker), Some(missing)) = (answer.workers.first(), answer.missing.first()) {
        let mut also = missing.clone();
        also.worker = *worker;
        answer.missing.push(also);
    }
}

/// Takes the first worker out of the answer's list, as if it were missing.
fn leave_out_first(answer: &mut AskedAnswer<DeskOutput>) {
    use evenfall_query_burst::standing::{MissingReason, MissingWorker};
    if answer.workers.is_empty() {
        return;
    }
    let worker = answer.workers.remove(0);
    let address = NodeIndex(worker as u32 + 1).address();
    answer.missing.push(MissingWorker { worker, address, why: MissingReason::Silent(SILENCE) });
}

fn change_answer(answer: &mut AskedAnswer<DeskOutput>) {
    match &mut answer.output.answer {
        Some(DeskAnswer::Nbbo(nbbo)) => drop(nbbo.symbols.pop()),
        Some(DeskAnswer::Reprice(reprice)) => reprice.change += 1,
        None => {}
    }
}

/// The scene that a seed draws.
pub struct QuestionScene {
    plan: Plan,
    feed: MadeFeed,
    rows: Vec<PlainRows>,
}

impl AsMut<Plan> for QuestionScene {
    fn as_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }
}

impl QuestionScene {
    fn settings() -> GroupSettings {
        let shuffle = ShuffleConfig {
            packet_bytes: 400,
            resend_after: Duration::from_millis(2),
            resend_after_min: Duration::from_micros(200),
            silence_max: SILENCE,
            ..ShuffleConfig::default()
        };
        GroupSettings { shuffle, ..GroupSettings::default() }
    }

    fn make_worker(&self, worker: usize) -> StandingNode {
        let mut recent = RecentRows::new(RecentConfig::default());
        play_rows(&self.rows[worker], &mut recent);
        let plan = DeskWorkerPlan::new(recent, self.rows[worker].positions.clone());
        let worker = BurstWorker::new(plan, Self::settings());
        StandingNode::new(NodeMachine::Worker(Box::new(worker)))
    }

    fn make_asker(&self) -> StandingNode {
        let config =
            StandingConfig { group: Self::settings(), workers_min: 1, answer_within: WITHIN };
        let workers = (1..=self.rows.len() as u32).map(|node| NodeIndex(node).address());
        let first = self.plan.seed as u32;
        let asker = BurstAsker::new(NodeIndex(0).address(), workers, config, first);
        StandingNode::new(NodeMachine::Asker(Box::new(asker)))
    }

    fn ask(&self) -> DeskAsk {
        let of = match self.feed.by_venue {
            true => DeskQuestion::Nbbo { markout: Duration::from_millis(100) },
            false => DeskQuestion::Reprice,
        };
        let window = Duration::from_secs(2);
        DeskAsk { of, window, worst: 3, fills: self.feed.make_fills().into() }
    }

    /// The answer of a plain program over the rows of these workers.
    fn plain(&self, workers: &[usize], window_ns: [i64; 2]) -> DeskAnswer {
        let rows: Vec<_> = workers.iter().map(|&worker| self.rows[worker].clone()).collect();
        answer_plainly(&rows, &self.ask(), window_ns)
    }

    /// Workers that never come back.
    fn gone(&self) -> Vec<usize> {
        let mut down = vec![false; self.rows.len() + 1];
        for (_, fault) in &self.plan.faults {
            match fault {
                Fault::Crash(node) => down[node.0 as usize] = true,
                Fault::Restart(node) => down[node.0 as usize] = false,
                _ => {}
            }
        }
        (0..self.rows.len()).filter(|worker| down[worker + 1]).collect()
    }

    /// Whether nothing but random losses hits anybody.
    fn is_mild(&self) -> bool {
        self.plan.faults.is_empty()
    }
}

/// Asks, and gathers the ends; makes workers anew that come back.
struct DeskWatch<'a> {
    scene: &'a QuestionScene,
    mutant: Option<QuestionMutant>,
    asked: Vec<SimTime>,
    ends: Vec<(SimTime, AskerEvent<DeskOutput>)>,
    /// Parts of workers that failed.
    failed: u64,
}

type AlteredNode = Altered<StandingNode, QuestionAlteration>;

impl Observer<AlteredNode, Wire> for DeskWatch<'_> {
    fn event(&mut self, seen: Seen, event: NodeEvent) {
        match event {
            NodeEvent::Asker(event) => self.ends.push((seen.at, event)),
            NodeEvent::Worker(WorkerEvent::Failed { .. }) => self.failed += 1,
            NodeEvent::Worker(_) => {}
        }
    }

    fn invoke(&mut self, seen: Seen, _: u64, machine: &mut AlteredNode) {
        self.asked.push(seen.at);
        let ask = self.scene.ask();
        let now = seen.local;
        machine.input(now, |node| node.ask(now, ask));
    }

    fn revive(&mut self, node: NodeIndex, _: Timestamp) -> Option<AlteredNode> {
        let worker = node.0.checked_sub(1)? as usize;
        let stays_away = self.mutant.filter(|mutant| *mutant == QuestionMutant::StaysAway);
        Some(Altered::new(self.scene.make_worker(worker), stays_away.map(QuestionAlteration)))
    }
}

/// The campaign: 1 to 7 workers answer ten questions.
pub struct QuestionCampaign;

impl Campaign for QuestionCampaign {
    type Check = QuestionCheck;
    type Mutant = QuestionMutant;
    type Scene = QuestionScene;

    fn outline(&self) -> Outline<QuestionMutant, QuestionCheck> {
        const MUTANTS: &[Trap<QuestionMutant, QuestionCheck>] = &[
            (QuestionMutant::ChangesAnswer, QuestionCheck::Plain, 0..MUTANT_SEEDS),
            (QuestionMutant::HidesMissing, QuestionCheck::Accounted, 0..MUTANT_SEEDS),
            (QuestionMutant::NamesPresent, QuestionCheck::Accounted, 0..MUTANT_SEEDS),
            (QuestionMutant::HidesEnd, QuestionCheck::EndsInTime, 0..MUTANT_SEEDS),
            (QuestionMutant::StaysAway, QuestionCheck::Recovers, 0..MUTANT_SEEDS),
            (QuestionMutant::LeavesOutLiving, QuestionCheck::NamesTheHit, 0..MUTANT_SEEDS),
        ];
        Outline {
            name: "questions",
            about: "a desk that asks standing workers, and is told who is missing",
            seeds: 1_000,
            once_failed: &[],
            kinds: KINDS,
            counts_min: &[
                ("packets lost", 1_000),
                ("answers", 8_000),
                ("answers without a worker", 1_000),
                ("second attempts", 100),
                ("no answer", 10),
            ],
            mutants: MUTANTS,
        }
    }

    fn seeds_max(&self) -> u64 {
        10_000
    }

    fn scene(&self, seed: u64) -> QuestionScene {
        let mut prng = Prng::new(seed);
        let workers = 1 + prng.below(7) as usize;
        let feed = MadeFeed {
            seed,
            workers,
            symbols: 1 + prng.below(5) as usize,
            rows: prng.below(60) as usize,
            accounts: 5,
            positions: 20,
            fills: 4,
            span_ns: 4_000_000_000,
            by_venue: prng.chance(0.6),
        };
        let last = SimTime::ZERO + FIRST + EVERY * QUESTIONS as u32;
        let bounds = Bounds {
            kinds: if prng.chance(0.85) { KINDS.to_vec() } else { Vec::new() },
            window: SimTime::from_millis(40)..=last,
            rates_max: Rates { loss: 0.03, ..Bounds::default().rates_max },
            bursts_max: Bursts {
                good: Duration::from_millis(50),
                bad: Duration::from_millis(10),
                loss: 1.0,
            },
            late_max: Late { share: 0.1, by: Duration::from_millis(200) },
            ..Bounds::default()
        };
        let nodes = || (1..=workers as u32).map(NodeIndex);
        let expendable = if workers > 2 { nodes().skip(workers / 2 + 1).collect() } else { vec![] };
        let victims = Victims { any: nodes().collect(), expendable };
        let mut plan = Plan::new(seed, &bounds).aimed(&bounds, &victims);
        if !bounds.kinds.is_empty() {
            strike_in_bursts(&mut plan, workers as u64);
        }
        let rows = (0..workers).map(|worker| feed.rows_of(worker)).collect();
        QuestionScene { plan, feed, rows }
    }

    fn run(
        &self,
        scene: &QuestionScene,
        mutant: Option<QuestionMutant>,
        story: bool,
    ) -> Run<QuestionCheck> {
        let mut world = World::new(Wire::new(Duration::from_micros(50)), scene.plan.seed);
        let at_asker = mutant.filter(|mutant| *mutant != QuestionMutant::StaysAway);
        let asker = Altered::new(scene.make_asker(), at_asker.map(QuestionAlteration));
        world.add(asker, HostSpec::ideal());
        for worker in 0..scene.rows.len() {
            world.add(Altered::new(scene.make_worker(worker), None), HostSpec::ideal());
        }
        scene.plan.schedule(&mut world);
        for number in 0..2 * QUESTIONS {
            let at = SimTime::ZERO + FIRST + EVERY * number as u32;
            world.invoke_at(at, NodeIndex(0), number);
        }
        let watch = DeskWatch { scene, mutant, asked: Vec::new(), ends: Vec::new(), failed: 0 };
        let mut watch = Transcript::told(watch, story);
        world.run_until(SimTime::ZERO + FIRST + EVERY * (2 * QUESTIONS) as u32, &mut watch);
        let mut run = Run { digest: world.digest(), story: watch.text, ..Run::default() };
        run.counts.push(("packets lost", world.tally().lost.iter().sum()));
        judge(scene, &watch.inner, &mut run);
        run
    }
}

/// Crashes or pauses workers while they answer: a question takes some milliseconds, so that faults
/// of any time seldom hit one.
fn strike_in_bursts(plan: &mut Plan, workers: u64) {
    let mut prng = Prng::new(plan.seed).fork(0x7374_726b);
    for number in 0..QUESTIONS {
        if !prng.chance(0.3) {
            continue;
        }
        let node = NodeIndex(1 + prng.below(workers) as u32);
        let within = Duration::from_micros(prng.below(1_500));
        let at = SimTime::ZERO + FIRST + EVERY * number as u32 + within;
        if prng.chance(0.5) {
            plan.faults.push((at, Fault::Pause(node, 3 * SILENCE)));
        } else {
            plan.faults.push((at, Fault::Crash(node)));
            plan.faults.push((at + 2 * SILENCE, Fault::Restart(node)));
        }
    }
    plan.faults.sort_by_key(|&(at, _)| at);
}

fn judge(scene: &QuestionScene, watch: &DeskWatch<'_>, run: &mut Run<QuestionCheck>) {
    let (asked, ends) = (watch.asked.len(), watch.ends.len());
    run.expect(QuestionCheck::EndsInTime, asked == ends, || {
        format!("{asked} questions have {ends} ends")
    });
    let (mut answers, mut partial, mut again, mut none) = (0, 0, 0, 0);
    for ((at, end), asked) in watch.ends.iter().zip(&watch.asked) {
        // One resend more than the time: timers fall on their own grid.
        let is_in_time = at.since(*asked) <= WITHIN + SILENCE;
        run.expect(QuestionCheck::EndsInTime, is_in_time, || {
            format!("asked at {asked}, ended at {at}")
        });
        match end {
            AskerEvent::Answered(answer) => {
                answers += 1;
                partial += u64::from(!answer.missing.is_empty());
                again += u64::from(answer.attempts > 1);
                judge_answer(scene, *at, answer, run);
            }
            AskerEvent::Unanswered { workers, missing, .. } => {
                none += 1;
                let words = || format!("no answer of {workers} workers at {at}: {missing:?}");
                run.expect(QuestionCheck::NamesTheHit, !scene.is_mild(), words);
            }
        }
    }
    run.counts.push(("parts that failed", watch.failed));
    run.counts.push(("answers", answers));
    run.counts.push(("answers without a worker", partial));
    run.counts.push(("second attempts", again));
    run.counts.push(("no answer", none));
    // All faults were over when the sixth question was asked; the sixth calls whoever was missing.
    for (at, end) in watch.ends.iter().skip(QUESTIONS as usize + 2) {
        let gone = scene.gone();
        let wanted = scene.rows.len() - gone.len();
        let found = match end {
            AskerEvent::Answered(answer) => answer.workers.len(),
            AskerEvent::Unanswered { .. } => 0,
        };
        run.expect(QuestionCheck::Recovers, found == wanted, || {
            format!("{found} of {wanted} workers at {at}: {end:?}")
        });
    }
}

fn judge_answer(
    scene: &QuestionScene,
    at: SimTime,
    answer: &AskedAnswer<DeskOutput>,
    run: &mut Run<QuestionCheck>,
) {
    let mut all = answer.workers.clone();
    all.extend(answer.missing.iter().map(|missing| missing.worker));
    all.sort_unstable();
    run.expect(QuestionCheck::Accounted, all.iter().copied().eq(0..scene.rows.len()), || {
        format!("at {at}: with {:?}, missing {:?}", answer.workers, answer.missing)
    });
    let is_right = answer.missing.is_empty() || !scene.is_mild();
    run.expect(QuestionCheck::NamesTheHit, is_right, || format!("at {at}: {:?}", answer.missing));
    let plain = scene.plain(&answer.workers, answer.output.window_ns);
    let found = answer.output.answer.as_ref();
    run.expect(QuestionCheck::Plain, found == Some(&plain), || {
        format!("at {at}: {found:?}, and plainly {plain:?}")
    });
}
