//! A leader that gives batches their places in a log: Raft, Multi-Paxos, and Zab with observers.
//!
//! While a leader stays, the three protocols send the same messages: every replica sends batches to
//! the leader, the leader sends its log to all, and an entry that a majority has is committed. The
//! three protocols are therefore one machine here. The protocols differ in the replicas that vote
//! and in the answers to reads ([`Reads`]). Multi-Paxos may commit entries out of order, which
//! gains nothing over links that deliver messages in order.
//!
//! The machine is Raft (Ongaro and Ousterhout, 2014): terms, elections, and logs that are repaired
//! by a new leader. Batches without an answer are sent again to a new leader; a batch that is in
//! the log twice is executed once. A leader holds a lease for as long as a majority has heard it
//! and would not vote for another one.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use evenfall_consensus_machine::ClientRequest;
use evenfall_core::{Malformed, Prng, Timestamp};

use super::wire::{Batch, WireField as _, messages};
use super::{ActionPace, Config, Rival, RivalContext};

/// The ways to answer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The replica asks the leader for the index of the last committed entry, and answers when it
    /// has executed this entry.
    Leased,
    /// A read is an entry of the log.
    Ordered,
    /// The replica answers from the entries that it has executed, although other replicas may have
    /// executed more.
    Local,
}

messages! {
    enum Message {
        /// A batch of the sender's clients, for the leader of this term.
        Forward { term: u64, batch: Batch },
        /// Entries behind the entry `before`. The answer repeats `sent`. A message with `sent` 0
        /// wants no answer.
        Append {
            term: u64,
            sent: u64,
            before: u64,
            before_term: u64,
            committed: u64,
            everywhere: u64,
            entries: Vec<(u64, Batch)>
        },
        /// With `is_match`, the log of the sender equals the leader's log up to `matched`.
        /// Otherwise the leader has to send its log again from behind `matched`.
        Appended { term: u64, sent: u64, matched: u64, executed: u64, is_match: bool },
        /// The sender asks for votes, and `last` is the last entry of its log.
        Candidate { term: u64, last: u64, last_term: u64 },
        Vote { term: u64 },
        /// The sender has reads that wait, and asks for the last committed index.
        Ask { term: u64, question: u64 },
        Index { question: u64, index: u64 },
    }
}

/// The state of a replica as the leader knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Follower {
    /// The next entry to send.
    next: u64,
    /// The follower's log equals the leader's log up to this entry.
    matched: u64,
    executed: u64,
    /// The committed index that the leader told the follower last.
    told: u64,
    /// When the leader sent the last message that the follower has answered, in nanoseconds.
    heard: u64,
    /// When the leader sent the last message that wants an answer.
    asked: Timestamp,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Leader {
    config: Config,
    reads: Reads,
    me: u32,
    voters: BTreeSet<u32>,
    prng: Prng,
    term: u64,
    /// The leader of the term, when it is known.
    leader: Option<u32>,
    voted: Option<u32>,
    votes: BTreeSet<u32>,
    /// When the leader was heard, and when its silence ends in an election.
    heard: Timestamp,
    election_at: Timestamp,
    /// The entries behind `base`, and the place and term of the last entry in front of them.
    log: VecDeque<(u64, Batch)>,
    base: (u64, u64),
    committed: u64,
    executed: u64,
    followers: Vec<Follower>,
    pace: ActionPace,
    /// The last batch of each replica that is executed.
    done: Vec<u64>,
    /// Batches of this replica's clients that are not executed.
    own: VecDeque<Batch>,
    /// Reads that wait for a question; questions without answer; reads that wait for an entry.
    unasked: Vec<ClientRequest>,
    asked: VecDeque<(u64, Vec<ClientRequest>)>,
    answered: VecDeque<(u64, Vec<ClientRequest>)>,
    questions: u64,
    ask_pace: ActionPace,
    /// Questions that wait for the lease.
    open: Vec<(u32, u64)>,
}

impl Leader {
    /// The replica with number `me`. Of all replicas, `voters` vote, spread over all numbers. The
    /// other replicas observe.
    pub fn new(config: Config, me: u32, voters: u32, reads: Reads) -> Self {
        let count = config.addresses.len() as u32;
        let voters = voters.min(count);
        let voters = (0..voters).map(|n| (config.leader + n * count / voters) % count).collect();
        let mut replica = Self {
            reads,
            me,
            voters,
            prng: Prng::new(config.seed),
            term: 1,
            leader: Some(config.leader),
            voted: None,
            votes: BTreeSet::new(),
            heard: Timestamp::ZERO,
            election_at: Timestamp::from_nanos(u64::MAX),
            log: VecDeque::new(),
            base: (0, 0),
            committed: 0,
            executed: 0,
            followers: vec![Follower { next: 1, ..Follower::default() }; count as usize],
            pace: ActionPace::new(config.batch_every),
            done: vec![0; count as usize],
            own: VecDeque::new(),
            unasked: Vec::new(),
            asked: VecDeque::new(),
            answered: VecDeque::new(),
            questions: 0,
            ask_pace: ActionPace::new(config.batch_every),
            open: Vec::new(),
            config,
        };
        if replica.is_leader() {
            replica.append(Batch::default());
        }
        replica
    }

    fn is_leader(&self) -> bool {
        self.leader == Some(self.me)
    }

    fn last(&self) -> u64 {
        self.base.0 + self.log.len() as u64
    }

    fn entry(&self, index: u64) -> Option<&(u64, Batch)> {
        self.log.get(index.checked_sub(self.base.0 + 1)? as usize)
    }

    fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        self.entry(index).map(|(term, _)| *term)
    }

    fn append(&mut self, batch: Batch) {
        self.log.push_back((self.term, batch));
        self.followers[self.me as usize].matched = self.last();
        self.commit();
    }

    /// Commits the entries that a majority of voters has, if the last of these entries is of this
    /// term.
    fn commit(&mut self) {
        let matched = |voter: &u32| self.followers[*voter as usize].matched;
        let mut matched: Vec<u64> = self.voters.iter().map(matched).collect();
        matched.sort_unstable();
        let by_majority = matched[(matched.len() - 1) / 2];
        if by_majority > self.committed && self.term_at(by_majority) == Some(self.term) {
            self.committed = by_majority;
        }
    }

    /// Whether no other leader can have committed anything: a majority has heard this one lately
    /// and votes for nobody until [`Config::suspect_after`] is over. The quarter that is left out
    /// covers clocks that run at different rates.
    fn has_lease(&self, now: Timestamp) -> bool {
        let since = now.nanos().saturating_sub(self.config.suspect_after.as_nanos() as u64 / 4 * 3);
        let hear =
            |voter: &&u32| **voter == self.me || self.followers[**voter as usize].heard > since;
        let majority = self.voters.len() / 2 + 1;
        self.term_at(self.committed) == Some(self.term)
            && self.voters.iter().filter(hear).count() >= majority
    }

    /// Another term has begun, and its leader may be known.
    fn enter(&mut self, out: &mut RivalContext, term: u64, leader: Option<u32>) {
        if term > self.term {
            (self.term, self.voted, self.leader) = (term, None, None);
            self.open.clear();
        }
        if leader.is_none() || self.leader == leader {
            return;
        }
        self.leader = leader;
        for batch in &self.own {
            out.send(leader.unwrap_or(self.me), &Message::Forward { term, batch: batch.clone() });
        }
        self.forget_questions();
    }

    /// The reads of questions to an earlier leader wait for a question to the next leader.
    fn forget_questions(&mut self) {
        let asked = self.asked.drain(..).flat_map(|(_, reads)| reads);
        self.unasked.extend(asked);
    }

    fn restart_election(&mut self, now: Timestamp) {
        let patience = self.config.suspect_after;
        let more = self.prng.below(patience.as_nanos() as u64);
        self.election_at = now + patience + Duration::from_nanos(more);
    }

    fn stand(&mut self, out: &mut RivalContext) {
        self.restart_election(out.now);
        self.enter(out, self.term + 1, None);
        self.voted = Some(self.me);
        self.votes = BTreeSet::from([self.me]);
        let (last, term) = (self.last(), self.term);
        let last_term = self.term_at(last).unwrap_or(0);
        let voters = self.voters.iter().copied().filter(|voter| *voter != self.me);
        out.multicast(voters, &Message::Candidate { term, last, last_term });
    }

    fn lead(&mut self) {
        self.leader = Some(self.me);
        let next = self.last() + 1;
        self.followers.fill(Follower { next, ..Follower::default() });
        self.forget_questions();
        // An entry of the own term commits all earlier entries. No replica executes the empty batch
        // of that entry.
        self.append(Batch::default());
        for batch in self.own.clone() {
            self.append(batch);
        }
    }

    /// The last entry that a replica gets. An observer gets only committed entries.
    fn upto(&self, replica: u32) -> u64 {
        if self.voters.contains(&replica) { self.last() } else { self.committed }
    }

    /// Sends each replica the entries that the replica lacks.
    fn replicate(&mut self, out: &mut RivalContext) {
        let beat = self.config.suspect_after / 4;
        let everywhere = self.everywhere();
        for to in out.others() {
            let mut peer = self.followers[to as usize];
            let is_voter = self.voters.contains(&to);
            let upto = self.upto(to);
            let beats = is_voter && peer.asked + beat <= out.now;
            if peer.next > upto && peer.told >= self.committed && !beats {
                continue;
            }
            let before = peer.next - 1;
            let Some(before_term) = self.term_at(before) else { continue };
            let entries: Vec<_> =
                (peer.next..=upto).filter_map(|index| self.entry(index).cloned()).collect();
            let wants_answer = is_voter && (beats || !entries.is_empty());
            if wants_answer {
                peer.asked = out.now;
            }
            let sent = if wants_answer { out.now.nanos().max(1) } else { 0 };
            (peer.next, peer.told) = (upto.max(before) + 1, self.committed);
            let (term, committed) = (self.term, self.committed);
            out.send(
                to,
                &Message::Append {
                    term,
                    sent,
                    before,
                    before_term,
                    committed,
                    everywhere,
                    entries,
                },
            );
            self.followers[to as usize] = peer;
        }
    }

    /// The last entry that no replica needs any more.
    fn everywhere(&self) -> u64 {
        let of = |(number, follower): (u32, &Follower)| match number {
            me if me == self.me => self.executed,
            voter if self.voters.contains(&voter) => follower.executed,
            _ => follower.next - 1,
        };
        (0..).zip(&self.followers).map(of).min().unwrap_or(0)
    }

    fn forget(&mut self, upto: u64) {
        while self.base.0 < upto.min(self.executed)
            && let Some((term, _)) = self.log.pop_front()
        {
            self.base = (self.base.0 + 1, term);
        }
    }

    /// Takes the entries of a leader. Returns how far the log equals that of the leader, or from
    /// where the leader has to begin.
    fn store(&mut self, before: (u64, u64), entries: Vec<(u64, Batch)>) -> Result<u64, u64> {
        let is_known = before.0 < self.base.0 || self.term_at(before.0) == Some(before.1);
        if !is_known {
            return Err(self.committed);
        }
        let mut index = before.0;
        for entry in entries {
            index += 1;
            if index <= self.base.0 || self.term_at(index) == Some(entry.0) {
                continue;
            }
            self.log.truncate((index - 1 - self.base.0) as usize);
            self.log.push_back(entry);
        }
        Ok(index)
    }

    fn execute(&mut self, out: &mut RivalContext) {
        while self.executed < self.committed {
            let Some((_, batch)) = self.entry(self.executed + 1).cloned() else { break };
            self.executed += 1;
            let Some(done) = self.done.get_mut(batch.origin as usize) else { continue };
            // A batch that was sent to two leaders has two places, and the empty batch of a new
            // leader has number 0.
            if batch.number == *done + 1 {
                *done += 1;
                if batch.origin == self.me {
                    self.own.pop_front();
                }
                out.execute(batch);
            }
        }
        while self.answered.front().is_some_and(|(index, _)| *index <= self.executed) {
            let (_, reads) = self.answered.pop_front().unwrap_or_default();
            out.answer(reads.into_iter());
        }
    }

    /// Asks the leader for its index on behalf of the reads that wait, and answers questions.
    fn question(&mut self, out: &mut RivalContext) {
        if let Some(leader) = self.leader
            && !self.unasked.is_empty()
            && (self.is_leader() || self.ask_pace.begin(out.now))
        {
            self.questions += 1;
            self.asked.push_back((self.questions, core::mem::take(&mut self.unasked)));
            match self.is_leader() {
                true => self.open.push((self.me, self.questions)),
                false => {
                    let (term, question) = (self.term, self.questions);
                    out.send(leader, &Message::Ask { term, question });
                }
            }
        }
        if self.is_leader() && !self.open.is_empty() && self.has_lease(out.now) {
            for (from, question) in core::mem::take(&mut self.open) {
                match from == self.me {
                    true => self.take_index(question, self.committed),
                    false => out.send(from, &Message::Index { question, index: self.committed }),
                }
            }
        }
    }

    fn take_index(&mut self, question: u64, index: u64) {
        // A question that is repeated to another leader has another number.
        if self.asked.front().is_some_and(|(asked, _)| *asked == question) {
            let (_, reads) = self.asked.pop_front().unwrap_or_default();
            self.answered.push_back((index, reads));
        }
    }
}

impl Rival for Leader {
    fn propose(&mut self, out: &mut RivalContext, batch: Batch) {
        self.own.push_back(batch.clone());
        match self.leader {
            Some(leader) if leader == self.me => self.append(batch),
            Some(leader) => out.send(leader, &Message::Forward { term: self.term, batch }),
            // The next leader gets the batch.
            None => {}
        }
    }

    fn read(&mut self, out: &mut RivalContext, read: ClientRequest) -> Option<ClientRequest> {
        match self.reads {
            Reads::Ordered => return Some(read),
            Reads::Leased => self.unasked.push(read),
            Reads::Local => out.answer(std::iter::once(read)),
        }
        None
    }

    fn hear(
        &mut self,
        out: &mut RivalContext,
        from: u32,
        message: &Bytes,
    ) -> Result<(), Malformed> {
        match Message::whole(message)? {
            Message::Forward { term, batch } => {
                if self.is_leader() && term == self.term {
                    self.append(batch);
                }
            }
            Message::Append { term, sent, before, before_term, committed, everywhere, entries } => {
                self.enter(out, term, (term >= self.term).then_some(from));
                let (mut matched, mut is_match) = (self.committed, false);
                if term == self.term {
                    self.heard = out.now;
                    self.restart_election(out.now);
                    if let Ok(upto) = self.store((before, before_term), entries) {
                        (matched, is_match) = (upto, true);
                        self.committed = self.committed.max(committed.min(upto));
                        self.execute(out);
                        self.forget(everywhere);
                    }
                }
                if sent > 0 || !is_match {
                    let (term, executed) = (self.term, self.executed);
                    out.send(from, &Message::Appended { term, sent, matched, executed, is_match });
                }
            }
            Message::Appended { term, sent, matched, executed, is_match } => {
                self.enter(out, term, None);
                if self.is_leader() && term == self.term {
                    let peer = &mut self.followers[from as usize];
                    peer.heard = peer.heard.max(sent);
                    match is_match {
                        true => peer.matched = peer.matched.max(matched),
                        false => peer.next = matched + 1,
                    }
                    peer.executed = peer.executed.max(executed);
                    self.commit();
                }
            }
            Message::Candidate { term, last, last_term } => {
                // A replica that hears its leader does not help to depose it.
                if out.now < self.heard + self.config.suspect_after {
                    return Ok(());
                }
                self.enter(out, term, None);
                let own = (self.term_at(self.last()).unwrap_or(0), self.last());
                let is_free = self.leader.is_none() && self.voted.is_none_or(|to| to == from);
                if term == self.term && is_free && (last_term, last) >= own {
                    self.voted = Some(from);
                    self.restart_election(out.now);
                    out.send(from, &Message::Vote { term });
                }
            }
            Message::Vote { term } => {
                if term == self.term && self.leader.is_none() && self.voted == Some(self.me) {
                    self.votes.insert(from);
                    if self.votes.len() > self.voters.len() / 2 {
                        self.lead();
                    }
                }
            }
            Message::Ask { term, question } => {
                if self.is_leader() && term == self.term {
                    self.open.push((from, question));
                }
            }
            Message::Index { question, index } => self.take_index(question, index),
        }
        Ok(())
    }

    fn turn(&mut self, out: &mut RivalContext) {
        if self.election_at == Timestamp::from_nanos(u64::MAX) {
            // The first input: the first leader may still be silent.
            self.heard = out.now;
            self.restart_election(out.now);
        }
        // The recovery of Zab, which has observers, is missing.
        let may_stand = self.voters.len() == self.followers.len() && !self.is_leader();
        if self.election_at <= out.now {
            match may_stand {
                true => self.stand(out),
                false => self.restart_election(out.now),
            }
        }
        self.execute(out);
        self.question(out);
        if self.is_leader() && self.lacks(out.now) && self.pace.begin(out.now) {
            self.replicate(out);
            self.forget(self.everywhere());
        }
    }

    fn wake(&self) -> Option<Timestamp> {
        let asks = !self.unasked.is_empty() && self.leader.is_some() && !self.is_leader();
        let ask = asks.then(|| self.ask_pace.next());
        let next = match self.is_leader() {
            true if self.lacks(self.pace.next()) => self.pace.next(),
            true => self.next_beat(),
            false => self.election_at,
        };
        [ask, Some(next)].into_iter().flatten().min()
    }
}

impl Leader {
    fn next_beat(&self) -> Timestamp {
        let others = self.voters.iter().filter(|voter| **voter != self.me);
        let asked = others.map(|voter| self.followers[*voter as usize].asked).min();
        asked.map_or(Timestamp::from_nanos(u64::MAX), |at| at + self.config.suspect_after / 4)
    }

    /// Whether some replica lacks entries, or waits for a message of the leader, at that time.
    fn lacks(&self, at: Timestamp) -> bool {
        let lacks = |(number, follower): (u32, &Follower)| {
            number != self.me
                && (follower.next <= self.upto(number) || follower.told < self.committed)
        };
        self.next_beat() <= at || (0..).zip(&self.followers).any(lacks)
    }
}
