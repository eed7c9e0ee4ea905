//! A root's side of the lines: admits messages and answers authors.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_core::NodeId;
use evenfall_core::node_keys::NODE_KEY_ID;
use evenfall_core::{
    Destination, Format, Malformed, MasterKey, NodeKey, SharedKey, TrafficClass, Transmit,
};

use super::wire::{
    MAGIC, ProduceRequest, ProduceResponse, ProducerDirection, ProducerEnvelope, STRETCHES_MAX,
    name_in,
};
use super::{LINES_MAX, ProducerTable, SessionChange};

/// What a root knows of itself when a letter comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadStanding {
    /// The epoch of the present lead.
    pub epoch: u32,
    /// The run; 0 before the run is open.
    pub run_id: u64,
    /// Whether this root leads.
    pub leads: bool,
}

/// The authors whose letters a root takes.
///
/// Without a key, only the address of a letter tells an author from a stranger. A root without a
/// key therefore takes letters of the authors of its settings alone, each from its own address, and
/// answers nobody else. The answer has the number of the run, which each later letter must have, so
/// the number reaches the address of the settings alone.
#[derive(Clone, Debug, Default)]
pub struct ProducerList {
    /// The address of each author by its name. Port 0 stands for all ports of the address, because
    /// the settings leave the port to the operating system. The address 0.0.0.0 stands for all
    /// addresses, where the key of a letter tells who wrote it.
    pub named: BTreeMap<u64, SocketAddr>,
    /// Whether authors that the list does not name are refused.
    pub only_named: bool,
}

impl ProducerList {
    fn permits(&self, name: u64, from: SocketAddr) -> bool {
        self.named.get(&name).map_or(!self.only_named, |address| {
            let is_same_port = address.port() == 0 || address.port() == from.port();
            address.ip().is_unspecified() || is_same_port && address.ip() == from.ip()
        })
    }
}

/// The last that was heard of an author.
#[derive(Clone, Copy, Debug)]
struct HeardProducer {
    address: SocketAddr,
    name: u64,
    /// The number of the latest letter.
    letter: u64,
    /// The first place that was not answered.
    told: u64,
    is_refused: bool,
}

/// The keys under which a root reads letters.
enum LetterKeys {
    /// All letters are under one key, or under none.
    Shared(Option<SharedKey>),
    /// Each letter is under the key of the node that its name states.
    Nodes(MasterKey),
}

/// The key under which an author and the roots write each other letters.
pub fn letter_key(node: &NodeKey) -> SharedKey {
    SharedKey::new(NODE_KEY_ID, node.derive("evenfall line v2 letters of a node", &[]))
}

impl LetterKeys {
    /// The key of the letters under this name.
    fn of(&self, name: u64) -> Result<Option<SharedKey>, Malformed> {
        let master = match self {
            Self::Shared(key) => return Ok(key.clone()),
            Self::Nodes(master) => master,
        };
        let id = name.checked_sub(1).and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or(Malformed { what: "a letter under the name of no node", offset: 8 })?;
        Ok(Some(letter_key(&master.node(NodeId(id)))))
    }
}

/// See the module documentation.
pub struct ProducerIngress {
    keys: LetterKeys,
    pub(super) permitted: ProducerList,
    life: u64,
    is_open: bool,
    /// The next place of authors of whom this root has taken messages since it leads. They may not
    /// be agreed yet.
    admitted: BTreeMap<u64, u64>,
    /// The author that takes over a name, by name. The voters may not have agreed yet. Messages of
    /// other authors of the name are not taken any more: the voters would refuse the frame, and all
    /// frames behind it.
    closing: BTreeMap<u64, u64>,
    heard: BTreeMap<u64, HeardProducer>,
    owed: BTreeSet<u64>,
    letters: u64,
}

impl ProducerIngress {
    /// An ingress that takes no messages yet. `life` is a random number that no other root has.
    pub fn new(key: Option<SharedKey>, life: u64) -> Self {
        Self {
            keys: LetterKeys::Shared(key),
            permitted: ProducerList::default(),
            life,
            is_open: false,
            admitted: BTreeMap::new(),
            closing: BTreeMap::new(),
            heard: BTreeMap::new(),
            owed: BTreeSet::new(),
            letters: 0,
        }
    }

    /// Reads each letter under the key of the node that its name states.
    pub fn with_node_keys(self, master: MasterKey) -> Self {
        Self { keys: LetterKeys::Nodes(master), ..self }
    }

    /// Takes letters of these authors alone.
    pub fn permitting(self, permitted: ProducerList) -> Self {
        Self { permitted, ..self }
    }

    /// Whether a datagram is a letter.
    pub fn is_of(datagram: &[u8]) -> bool {
        datagram.starts_with(&MAGIC)
    }

    /// Takes messages from now on, or takes none.
    pub fn open(&mut self, is_open: bool) {
        self.is_open = is_open;
    }

    /// The lead has changed. Messages that are not agreed are forgotten, and their authors send
    /// them again.
    pub fn turn_over(&mut self) {
        self.admitted.clear();
        self.closing.clear();
        self.owed.extend(self.heard.keys());
    }

    /// The voters agreed on messages of this author, or on the end of its line.
    pub fn agreed(&mut self, author: u64) {
        self.owed.insert(author);
    }

    /// Takes a letter. `publish` gives a message that is next in its line a number in the feed, or
    /// `None` when there is no room. Returns the change of the author on which the voters may
    /// agree.
    ///
    /// # Errors
    /// [`Malformed`] when the datagram is no letter to a root under the key.
    pub fn handle(
        &mut self,
        (from, datagram): (SocketAddr, &Bytes),
        standing: LeadStanding,
        lines: &ProducerTable,
        publish: &mut dyn FnMut(u64, u64, (Format, Bytes)) -> Option<u64>,
    ) -> Result<Option<SessionChange>, Malformed> {
        let key = self.keys.of(name_in(datagram).unwrap_or_default())?;
        let (envelope, body) = ProducerEnvelope::open(key.as_ref(), datagram)?;
        if envelope.kind != ProducerDirection::ToRoot || envelope.author == 0 {
            return Err(Malformed { what: "no letter to a root", offset: 0 });
        }
        let say = ProduceRequest::decode(&body)?;
        let author = envelope.author;
        let name = if lines.knows(author) { lines.name(author) } else { envelope.name };
        if name != envelope.name || !self.permitted.permits(name, from) {
            // A stranger gets no answer, which would tell it the run.
            return Err(Malformed { what: "a letter that is not from its author", offset: 0 });
        }
        if !self.hear(from, &envelope) {
            return Ok(None);
        }
        let agreed = lines.next(author);
        let asks = say.messages.is_empty() || say.place < agreed;
        let takes = standing.leads && self.is_open && envelope.run_id == standing.run_id;
        let is_over = lines.is_over(author);
        if asks || !takes || is_over {
            self.owe(author, say.have);
        }
        if !takes || is_over {
            return Ok(None);
        }
        if !lines.knows(author) {
            let has_room = lines.len() < LINES_MAX;
            if !has_room {
                self.owe(author, say.have);
                self.heard.entry(author).and_modify(|heard| heard.is_refused = true);
            } else if lines.has(name) {
                self.closing.insert(name, author);
            }
            return Ok(has_room.then_some(SessionChange::Begin { author, name }));
        }
        let newer = self.closing.get(&lines.name(author));
        if newer.is_some_and(|newer| *newer != author) {
            return Ok(None);
        }
        if say.is_end {
            let change = SessionChange::End { author, places: say.place };
            return Ok((say.place == agreed).then_some(change));
        }
        for (place, message) in (say.place..).zip(say.messages) {
            let next = self.admitted.get(&author).copied().unwrap_or(agreed);
            if place < next {
                continue;
            }
            // Behind a gap, and when there is no room, the author sends again.
            if place > next || publish(author, place, message).is_none() {
                break;
            }
            self.admitted.insert(author, next + 1);
        }
        Ok(None)
    }

    /// Notes where the author of a letter is. An old letter that somebody recorded and sends again
    /// does not change this. Returns whether there is room for the author, and the author has no
    /// other name.
    fn hear(&mut self, address: SocketAddr, envelope: &ProducerEnvelope) -> bool {
        let ProducerEnvelope { name, author, number: letter, .. } = *envelope;
        if !self.heard.contains_key(&author) && self.heard.len() >= 2 * LINES_MAX {
            return false;
        }
        let new = HeardProducer { address, name, letter, told: 0, is_refused: false };
        let heard = self.heard.entry(author).or_insert(new);
        if heard.name != name {
            return false;
        }
        if letter > heard.letter {
            (heard.address, heard.letter) = (address, letter);
        }
        true
    }

    fn owe(&mut self, author: u64, have: u64) {
        self.heard.entry(author).and_modify(|heard| heard.told = have);
        self.owed.insert(author);
    }

    /// The next answer.
    pub fn poll_transmit(
        &mut self,
        standing: LeadStanding,
        lines: &ProducerTable,
    ) -> Option<Transmit> {
        loop {
            let author = self.owed.pop_first()?;
            // A root that never heard of the author has no address.
            let Some(heard) = self.heard.get_mut(&author) else { continue };
            // The name was read when the letter came.
            let Ok(key) = self.keys.of(heard.name) else { continue };
            let next = lines.next(author);
            let stretches = lines.stretches(author, heard.told, STRETCHES_MAX);
            heard.told = stretches.last().map_or(next, |last| last.place + u64::from(last.count));
            if heard.told < next {
                self.owed.insert(author);
            }
            let answer = ProduceResponse {
                epoch: standing.epoch,
                leads: standing.leads && self.is_open,
                is_over: lines.is_over(author),
                is_refused: core::mem::take(&mut heard.is_refused),
                is_finished: lines.is_finished(author),
                is_begun: lines.knows(author),
                base: lines.base(author),
                next,
                stretches,
            };
            self.letters += 1;
            let (life, run_id, number) = (self.life, standing.run_id, self.letters);
            let envelope = ProducerEnvelope {
                kind: ProducerDirection::ToPublisher,
                name: heard.name,
                author,
                life,
                run_id,
                number,
            };
            let to = Destination::One(heard.address);
            let (head, body) = envelope.seal(key.as_ref(), answer.encode());
            return Some(Transmit::new(TrafficClass::Control, to, head, body));
        }
    }
}
