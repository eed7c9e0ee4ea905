//! What each call does as its messages arrive: the first messages, the messages that follow from
//! each arrival, and the result. A course knows nothing of packets, losses or time.

use core::fmt;

use bytes::Bytes;
use evenfall_core::Malformed;

use super::bundle::{BundleEntry, pack, unpack};
use super::tree::{GATHER_ARITY, Knomial};
use super::{CollectiveOutcome, MergeRule, Reduce};
use crate::shuffle::Outbound;

/// Messages to send now, each with its receiver.
pub(super) type Sends = Vec<(usize, Bytes)>;

/// A call under way at one rank.
pub(super) trait CollectiveAlgorithm: fmt::Debug + Send {
    /// Takes the message of a rank: at most one message comes from each rank, in any order. The
    /// messages that follow go to `out`, at most one to each rank in the whole call, and only to
    /// ranks that the script lists as [`Outbound::Later`].
    fn take(&mut self, from: usize, body: Bytes, out: &mut Sends) -> Result<(), Malformed>;

    /// The result, once every message is here. The error is a rank whose part was missing in the
    /// bundles.
    fn outcome(&mut self) -> Result<CollectiveOutcome, u16>;
}

/// The messages of an operation as one rank sees them, and the course that follows from them.
pub(super) struct Script {
    pub(super) sends: Vec<Outbound>,
    pub(super) expects: Vec<bool>,
    pub(super) course: Box<dyn CollectiveAlgorithm>,
}

impl Script {
    fn new(ranks: usize, course: impl CollectiveAlgorithm + 'static) -> Self {
        let sends = vec![Outbound::Nothing; ranks];
        Self { sends, expects: vec![false; ranks], course: Box::new(course) }
    }

    /// One message from each rank to each rank.
    pub(super) fn shuffle(messages: Vec<Bytes>) -> Self {
        let ranks = messages.len();
        let sends = messages.into_iter().map(Outbound::Now).collect();
        let course = Box::new(Collect { parts: vec![None; ranks] });
        Self { sends, expects: vec![true; ranks], course }
    }

    /// One message down a tree.
    pub(super) fn broadcast(tree: &Knomial, ranks: usize, me: usize, body: Bytes) -> Self {
        let (parent, children) = (tree.parent(me), tree.children(me));
        let mut script = Self::new(
            ranks,
            Broadcast { children: children.clone(), body: parent.is_none().then(|| body.clone()) },
        );
        for child in children {
            script.sends[child] = match parent {
                None => Outbound::Now(body.clone()),
                Some(_) => Outbound::Later,
            };
        }
        if let Some(parent) = parent {
            script.expects[parent] = true;
        }
        script
    }

    /// All messages up a tree.
    pub(super) fn gather(ranks: usize, root: usize, me: usize, body: Bytes) -> Self {
        let tree = Knomial::new(GATHER_ARITY, ranks, root);
        let (parent, children) = (tree.parent(me), tree.children(me));
        let mut parts = Parts::new(ranks);
        parts.of[me] = Some(body);
        let own = pack(parts.entries().iter());
        let waits = children.len();
        let mut script = Self::new(ranks, Gather { parent, waits, parts });
        children.iter().for_each(|&child| script.expects[child] = true);
        if let Some(parent) = parent {
            script.sends[parent] = if waits == 0 { Outbound::Now(own) } else { Outbound::Later };
        }
        script
    }

    /// One merged body up a tree.
    pub(super) fn merge(ranks: usize, root: usize, me: usize, body: Bytes, by: MergeRule) -> Self {
        let tree = Knomial::new(GATHER_ARITY, ranks, root);
        let (parent, mut children) = (tree.parent(me), tree.children(me));
        children.sort_unstable();
        let mut script = Self::new(ranks, Collect { parts: Vec::new() });
        children.iter().for_each(|&child| script.expects[child] = true);
        if let Some(parent) = parent {
            let is_leaf = children.is_empty();
            script.sends[parent] =
                if is_leaf { Outbound::Now(body.clone()) } else { Outbound::Later };
        }
        let mut parts = vec![body];
        parts.resize(1 + children.len(), Bytes::new());
        let waits = children.len();
        script.course = Box::new(Merge { parent, children, waits, parts, by });
        script
    }

    /// All messages to all ranks, by hypercube.
    pub(super) fn all_gather(ranks: usize, me: usize, body: Bytes) -> Self {
        let mut parts = Parts::new(ranks);
        parts.of[me] = Some(body);
        Self::steps(ranks, hypercube(ranks, me), Value::Parts(parts))
    }

    /// Reduced values to all ranks, by hypercube.
    pub(super) fn all_reduce(ranks: usize, me: usize, body: Bytes, by: Reduce) -> Self {
        Self::steps(ranks, hypercube(ranks, me), Value::Lanes(body, by))
    }

    /// Empty messages by dissemination.
    pub(super) fn barrier(ranks: usize, me: usize) -> Self {
        Self::steps(ranks, dissemination(ranks, me), Value::Nothing)
    }

    fn steps(ranks: usize, steps: Vec<Step>, value: Value) -> Self {
        let inbox = vec![None; ranks];
        let mut course = Steps { steps, at: 0, inbox, value };
        let mut script = Self::new(ranks, Collect { parts: Vec::new() });
        for step in &course.steps {
            step.send.iter().for_each(|&to| script.sends[to] = Outbound::Later);
            step.recv.iter().for_each(|&from| script.expects[from] = true);
        }
        let mut out = Vec::new();
        course.enter(&mut out);
        for (to, body) in out {
            script.sends[to] = Outbound::Now(body);
        }
        script.course = Box::new(course);
        script
    }

    /// Messages over a mesh: along rows, then along columns.
    pub(super) fn two_level(me: usize, messages: Vec<Bytes>) -> Self {
        let ranks = messages.len();
        let mesh = Mesh::new(ranks);
        let mut course = TwoLevel {
            mesh,
            me,
            rows_left: 0,
            parts: vec![None; ranks],
            onward: vec![Vec::new(); ranks],
        };
        let mut along: Vec<Vec<BundleEntry>> = vec![Vec::new(); ranks];
        for (to, body) in messages.into_iter().enumerate() {
            let entry = BundleEntry { from: me as u16, to: to as u16, body };
            along[mesh.first_hop(me, to)].push(entry);
        }
        for entry in along[me].drain(..) {
            course.keep(entry);
        }
        let mut sends = vec![Outbound::Nothing; ranks];
        let mut expects = vec![false; ranks];
        for peer in mesh.row_of(me).filter(|&peer| peer != me) {
            sends[peer] = Outbound::Now(pack(along[peer].iter()));
            expects[peer] = true;
            course.rows_left += 1;
        }
        for peer in mesh.second_hops(me) {
            sends[peer] = Outbound::Later;
        }
        for peer in (0..ranks).filter(|&peer| mesh.second_hops(peer).any(|to| to == me)) {
            expects[peer] = true;
        }
        if course.rows_left == 0 {
            let mut out = Vec::new();
            course.turn(&mut out);
            for (to, body) in out {
                sends[to] = Outbound::Now(body);
            }
        }
        Self { sends, expects, course: Box::new(course) }
    }
}

/// The messages of all ranks, or the first rank whose message is missing.
fn whole(parts: &mut Vec<Option<Bytes>>) -> Result<CollectiveOutcome, u16> {
    match parts.iter().position(Option::is_none) {
        Some(rank) => Err(rank as u16),
        None => Ok(CollectiveOutcome::All(parts.drain(..).flatten().collect())),
    }
}

/// Collects one message from each rank.
#[derive(Debug)]
struct Collect {
    parts: Vec<Option<Bytes>>,
}

impl CollectiveAlgorithm for Collect {
    fn take(&mut self, from: usize, body: Bytes, _: &mut Sends) -> Result<(), Malformed> {
        self.parts[from] = Some(body);
        Ok(())
    }

    fn outcome(&mut self) -> Result<CollectiveOutcome, u16> {
        whole(&mut self.parts)
    }
}

#[derive(Debug)]
struct Broadcast {
    children: Vec<usize>,
    body: Option<Bytes>,
}

impl CollectiveAlgorithm for Broadcast {
    fn take(&mut self, _: usize, body: Bytes, out: &mut Sends) -> Result<(), Malformed> {
        out.extend(self.children.iter().map(|&child| (child, body.clone())));
        self.body = Some(body);
        Ok(())
    }

    fn outcome(&mut self) -> Result<CollectiveOutcome, u16> {
        Ok(CollectiveOutcome::One(self.body.take().unwrap_or_default()))
    }
}

/// The messages of the ranks that are known so far.
#[derive(Clone, Debug)]
struct Parts {
    of: Vec<Option<Bytes>>,
}

impl Parts {
    fn new(ranks: usize) -> Self {
        Self { of: vec![None; ranks] }
    }

    fn entries(&self) -> Vec<BundleEntry> {
        let entry = |(from, body): (usize, &Option<Bytes>)| {
            Some(BundleEntry { from: from as u16, to: 0, body: body.clone()? })
        };
        self.of.iter().enumerate().filter_map(entry).collect()
    }

    /// Takes the messages that another rank knows.
    fn merge(&mut self, bundle: &Bytes) -> Result<(), Malformed> {
        for BundleEntry { from, body, .. } in unpack(bundle)? {
            match self.of.get_mut(usize::from(from)) {
                Some(part @ None) => *part = Some(body),
                // The bundle that a folded rank gets back contains the rank's own message.
                Some(Some(known)) if *known == body => {}
                _ => return Err(Malformed { what: "a message of a rank twice", offset: 0 }),
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Gather {
    parent: Option<usize>,
    waits: usize,
    parts: Parts,
}

impl CollectiveAlgorithm for Gather {
    fn take(&mut self, _: usize, body: Bytes, out: &mut Sends) -> Result<(), Malformed> {
        self.parts.merge(&body)?;
        self.waits -= 1;
        if let Some(parent) = self.parent
            && self.waits == 0
        {
            out.push((parent, pack(self.parts.entries().iter())));
        }
        Ok(())
    }

    fn outcome(&mut self) -> Result<CollectiveOutcome, u16> {
        if self.parent.is_some() {
            Ok(CollectiveOutcome::Nothing)
        } else {
            whole(&mut self.parts.of)
        }
    }
}

#[derive(Debug)]
struct Merge {
    parent: Option<usize>,
    /// Ascending.
    children: Vec<usize>,
    waits: usize,
    /// The own body, then one of each child.
    parts: Vec<Bytes>,
    by: MergeRule,
}

impl CollectiveAlgorithm for Merge {
    fn take(&mut self, from: usize, body: Bytes, out: &mut Sends) -> Result<(), Malformed> {
        (self.by.check)(&body)?;
        // Only children are expected, so the shuffle hands in nothing else.
        let Ok(child) = self.children.binary_search(&from) else { return Ok(()) };
        self.parts[1 + child] = body;
        self.waits -= 1;
        if let Some(parent) = self.parent
            && self.waits == 0
        {
            out.push((parent, (self.by.merge)(&self.parts)));
        }
        Ok(())
    }

    fn outcome(&mut self) -> Result<CollectiveOutcome, u16> {
        match self.parent {
            Some(_) => Ok(CollectiveOutcome::Nothing),
            None => Ok(CollectiveOutcome::One((self.by.merge)(&self.parts))),
        }
    }
}

/// A step of a hypercube or a dissemination: a rank sends what it knows, then waits for the other
/// rank's knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    send: Option<usize>,
    recv: Option<usize>,
    /// Whether the arriving values are the result, which must not be combined with the own values.
    is_result: bool,
}

/// In each step a rank trades messages with the rank whose number differs from its own in one bit.
/// When the number of ranks is no power of two, each rank beyond the largest power first hands its
/// part to a lower rank. The lower rank gives the result back at the end.
fn hypercube(ranks: usize, me: usize) -> Vec<Step> {
    let cube = 1 << ranks.ilog2();
    let extra = ranks - cube;
    let step = |send, recv| Step { send, recv, is_result: false };
    if me >= cube {
        let to = me - cube;
        return vec![step(Some(to), None), Step { is_result: true, ..step(None, Some(to)) }];
    }
    let folded = (me < extra).then(|| me + cube);
    let mut steps = Vec::new();
    steps.extend(folded.map(|from| step(None, Some(from))));
    for bit in 0..cube.ilog2() {
        let peer = Some(me ^ (1 << bit));
        steps.push(step(peer, peer));
    }
    steps.extend(folded.map(|to| step(Some(to), None)));
    steps
}

/// In step `i` each rank tells the rank `2^i` further on, so that all ranks know all values after
/// `log n` steps.
fn dissemination(ranks: usize, me: usize) -> Vec<Step> {
    let strides = (0..).map(|bit| 1 << bit).take_while(|&stride| stride < ranks);
    let step = |stride: usize| Step {
        send: Some((me + stride) % ranks),
        recv: Some((me + ranks - stride) % ranks),
        is_result: false,
    };
    strides.map(step).collect()
}

/// The values that steps carry.
#[derive(Debug)]
enum Value {
    Nothing,
    Parts(Parts),
    Lanes(Bytes, Reduce),
}

impl Value {
    fn encode(&self) -> Bytes {
        match self {
            Self::Nothing => Bytes::new(),
            Self::Parts(parts) => pack(parts.entries().iter()),
            Self::Lanes(lanes, _) => lanes.clone(),
        }
    }

    fn merge(&mut self, body: &Bytes, is_result: bool) -> Result<(), Malformed> {
        match self {
            Self::Nothing if body.is_empty() => Ok(()),
            Self::Nothing => Err(Malformed { what: "a barrier carries nothing", offset: 0 }),
            Self::Parts(parts) => parts.merge(body),
            Self::Lanes(lanes, _) if lanes.len() != body.len() => {
                Err(Malformed { what: "another number of values to reduce", offset: 0 })
            }
            Self::Lanes(lanes, _) if is_result => {
                *lanes = body.clone();
                Ok(())
            }
            Self::Lanes(lanes, by) => {
                *lanes = by.lanes(lanes, body);
                Ok(())
            }
        }
    }
}

#[derive(Debug)]
struct Steps {
    steps: Vec<Step>,
    at: usize,
    /// Messages that arrived before their step, by sender.
    inbox: Vec<Option<Bytes>>,
    value: Value,
}

impl Steps {
    /// Sends the messages of this step, and of the next steps until one has to wait for an arrival.
    fn enter(&mut self, out: &mut Sends) {
        while let Some(step) = self.steps.get(self.at) {
            out.extend(step.send.map(|to| (to, self.value.encode())));
            if step.recv.is_some() {
                return;
            }
            self.at += 1;
        }
    }
}

impl CollectiveAlgorithm for Steps {
    fn take(&mut self, from: usize, body: Bytes, out: &mut Sends) -> Result<(), Malformed> {
        self.inbox[from] = Some(body);
        while let Some(&Step { recv: Some(from), is_result, .. }) = self.steps.get(self.at)
            && let Some(body) = self.inbox[from].take()
        {
            self.value.merge(&body, is_result)?;
            self.at += 1;
            self.enter(out);
        }
        Ok(())
    }

    fn outcome(&mut self) -> Result<CollectiveOutcome, u16> {
        match &mut self.value {
            Value::Nothing => Ok(CollectiveOutcome::Nothing),
            Value::Parts(parts) => whole(&mut parts.of),
            Value::Lanes(lanes, _) => Ok(CollectiveOutcome::One(core::mem::take(lanes))),
        }
    }
}

/// The ranks laid out in rows of equal length. Only the last row may be shorter.
///
/// A message goes along its sender's row to the column of its receiver, then along that column. In
/// the last row, the column `c` of the receiver may be missing. The message then takes column `c
/// mod length`, and the rank there passes it on across:
///
/// ```text
///   0  1  2  3        7 to 3: 3 mod 2 = 1, which is 9's column; 9 sends to 3
///   4  5  6  7
///   8  9              8 to 3: along the row to 9, then from 9 to 3
/// ```
#[derive(Clone, Copy, Debug)]
struct Mesh {
    ranks: usize,
    columns: usize,
}

impl Mesh {
    fn new(ranks: usize) -> Self {
        let mut columns = ranks.isqrt();
        columns += usize::from(columns * columns < ranks);
        Self { ranks, columns: columns.max(1) }
    }

    fn row_of(self, rank: usize) -> core::ops::Range<usize> {
        let first = rank / self.columns * self.columns;
        first..(first + self.columns).min(self.ranks)
    }

    /// The rank in the sender's row that takes messages for `to`. That rank is the receiver itself
    /// when the receiver is in the row.
    fn first_hop(self, from: usize, to: usize) -> usize {
        let row = self.row_of(from);
        if row.contains(&to) {
            return to;
        }
        row.start + to % self.columns % row.len()
    }

    /// The ranks to which `rank` passes messages on: all ranks of other rows whose first hop is
    /// `rank`.
    fn second_hops(self, rank: usize) -> impl Iterator<Item = usize> {
        let row = self.row_of(rank);
        (0..self.ranks).filter(move |&to| !row.contains(&to) && self.first_hop(rank, to) == rank)
    }
}

#[derive(Debug)]
struct TwoLevel {
    mesh: Mesh,
    me: usize,
    rows_left: usize,
    parts: Vec<Option<Bytes>>,
    onward: Vec<Vec<BundleEntry>>,
}

impl TwoLevel {
    fn keep(&mut self, entry: BundleEntry) {
        if usize::from(entry.to) == self.me {
            self.parts[usize::from(entry.from)] = Some(entry.body);
        } else {
            self.onward[usize::from(entry.to)].push(entry);
        }
    }

    /// Sends along the column, after the row is complete.
    fn turn(&mut self, out: &mut Sends) {
        for to in self.mesh.second_hops(self.me) {
            let mut entries = core::mem::take(&mut self.onward[to]);
            entries.sort_by_key(|entry| entry.from);
            out.push((to, pack(entries.iter())));
        }
    }
}

impl CollectiveAlgorithm for TwoLevel {
    fn take(&mut self, from: usize, body: Bytes, out: &mut Sends) -> Result<(), Malformed> {
        let row = self.mesh.row_of(self.me);
        let in_row = row.contains(&from);
        for entry in unpack(&body)? {
            let (source, to) = (usize::from(entry.from), usize::from(entry.to));
            // A rank of the own row sends its own messages. A rank of another row sends the
            // messages of its row.
            let right = source < self.mesh.ranks
                && to < self.mesh.ranks
                && if in_row {
                    source == from && self.mesh.first_hop(source, to) == self.me
                } else {
                    to == self.me && self.mesh.row_of(from).contains(&source)
                };
            if !right || to == self.me && self.parts[source].is_some() {
                return Err(Malformed { what: "a message on the wrong way", offset: 0 });
            }
            self.keep(entry);
        }
        if in_row {
            self.rows_left -= 1;
            if self.rows_left == 0 {
                self.turn(out);
            }
        }
        Ok(())
    }

    fn outcome(&mut self) -> Result<CollectiveOutcome, u16> {
        whole(&mut self.parts)
    }
}
