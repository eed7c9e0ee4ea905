//! OpenFlow 1.3: sets up the path of a read in switches, and reads the counters of their rules.
//!
//! A policy that chooses paths needs switches that follow. Switches hash a flow's addresses and
//! ports to a path, unless a rule says otherwise. A controller therefore adds a rule for the
//! packets of a read to each switch on the chosen path, and removes the rules at the end of the
//! read:
//!
//! ```text
//!  controller                                    switch
//!     hello, features  ------------------------>   its name
//!     rule (cookie of the read), barrier  ----->   carried out
//!     counters of all rules  ------------------>   bytes by cookie, in one answer or several
//!     removal (cookie)  ----------------------->
//!     <----------------------------------- echo    the controller answers, or is taken for dead
//! ```
//!
//! [`SwitchSession`] is the controller's side of one connection: bytes in, events and bytes out. A
//! driver owns the sockets and the threads. [`wire`] has the messages. Only the messages above are
//! spoken. Groups, meters and packets that switches hand up are absent on purpose: the owner of the
//! network sets up how packets without a rule travel.

pub mod wire;

#[cfg(test)]
mod tests;

use evenfall_core::Malformed;

pub use wire::{FlowMod, FlowRule, FlowStat, PacketMatch, PortStat, SwitchMessage};

/// Most entries of one answer with counters. A switch of a rack sees some hundred reads at once,
/// and an answer of this many rules has 8 MB. A longer answer ends the connection.
pub const ENTRIES_MAX: usize = 65_536;
/// Most bytes that wait for a switch. A rule has 136 bytes, so that 7,000 rules may wait. A switch
/// that is so far behind gets no more, and its connection ends.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// What a switch said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The switch has told its name and takes rules.
    Ready {
        /// The name.
        datapath: u64,
    },
    /// All messages before the barrier with this xid have been carried out.
    Done(u32),
    /// The counters that were asked for under this xid.
    Flows(u32, Vec<FlowStat>),
    /// The counters that were asked for under this xid.
    Ports(u32, Vec<PortStat>),
    /// The switch refused the message with this xid.
    Refused {
        /// The xid.
        xid: u32,
        /// What is wrong, by the tables of section 7.4.4 of the specification.
        kind: u16,
        /// Details of `kind`.
        code: u16,
    },
}

/// The controller's side of a connection with one switch.
#[derive(Debug)]
pub struct SwitchSession {
    /// Bytes of a message that has not arrived whole: less than one message.
    input: Vec<u8>,
    output: Vec<u8>,
    xid: u32,
    is_greeted: bool,
    datapath: Option<u64>,
    /// Counters of which more will come, with their xid.
    flows: (u32, Vec<FlowStat>),
    ports: (u32, Vec<PortStat>),
}

impl Default for SwitchSession {
    fn default() -> Self {
        Self::new()
    }
}

impl SwitchSession {
    /// A session on a new connection. The first bytes for the switch wait already.
    pub fn new() -> Self {
        let mut session = Self {
            input: Vec::new(),
            output: Vec::new(),
            xid: 0,
            is_greeted: false,
            datapath: None,
            flows: (0, Vec::new()),
            ports: (0, Vec::new()),
        };
        session.send(&SwitchMessage::Hello);
        session
    }

    /// The name of the switch, once the switch is ready.
    pub fn datapath(&self) -> Option<u64> {
        self.datapath
    }

    /// Takes the bytes that wait for the switch.
    pub fn output(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.output)
    }

    /// Whether the switch is so far behind that its connection has to end.
    pub fn is_behind(&self) -> bool {
        self.output.len() > OUTPUT_BYTES_MAX
    }

    /// Adds a rule, or removes rules. Returns the xid under which a switch refuses the change.
    pub fn change(&mut self, change: FlowMod) -> u32 {
        self.send(&SwitchMessage::FlowMod(change))
    }

    /// Asks for [`Event::Done`] under the returned xid.
    pub fn barrier(&mut self) -> u32 {
        self.send(&SwitchMessage::BarrierRequest)
    }

    /// Asks for [`Event::Flows`] with all rules under the returned xid.
    pub fn ask_flows(&mut self) -> u32 {
        self.send(&SwitchMessage::FlowStatsRequest)
    }

    /// Asks for [`Event::Ports`] with all ports under the returned xid.
    pub fn ask_ports(&mut self) -> u32 {
        self.send(&SwitchMessage::PortStatsRequest)
    }

    /// Takes in bytes of the switch. Returns what they say.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not OpenFlow 1.3, or break a limit. The connection has to
    /// end then.
    pub fn arrive(&mut self, bytes: &[u8]) -> Result<Vec<Event>, Malformed> {
        self.input.extend(bytes);
        let (mut at, mut events) = (0, Vec::new());
        while let Some(length) = wire::length(&self.input[at..])? {
            let Some(message) = self.input.get(at..at + length) else { break };
            let (xid, message) = SwitchMessage::decode(message)?;
            at += length;
            events.extend(self.take(xid, message)?);
        }
        self.input.drain(..at);
        Ok(events)
    }

    fn send(&mut self, message: &SwitchMessage) -> u32 {
        self.xid = self.xid.wrapping_add(1);
        if !self.is_behind() {
            message.encode(self.xid, &mut self.output);
        }
        self.xid
    }

    fn take(&mut self, xid: u32, message: SwitchMessage) -> Result<Option<Event>, Malformed> {
        if !self.is_greeted && message != SwitchMessage::Hello {
            return Err(Malformed { what: "no hello at the start", offset: 1 });
        }
        match message {
            SwitchMessage::Hello => {
                if !self.is_greeted {
                    self.is_greeted = true;
                    self.send(&SwitchMessage::FeaturesRequest);
                }
                Ok(None)
            }
            SwitchMessage::Features { datapath, .. } => {
                let is_new = self.datapath.replace(datapath).is_none();
                Ok(is_new.then_some(Event::Ready { datapath }))
            }
            SwitchMessage::EchoRequest(data) => {
                if !self.is_behind() {
                    SwitchMessage::EchoReply(data).encode(xid, &mut self.output);
                }
                Ok(None)
            }
            SwitchMessage::BarrierReply => Ok(Some(Event::Done(xid))),
            SwitchMessage::FlowStats(part) => {
                Ok(collect(&mut self.flows, xid, part)?.map(|all| Event::Flows(xid, all)))
            }
            SwitchMessage::PortStats(part) => {
                Ok(collect(&mut self.ports, xid, part)?.map(|all| Event::Ports(xid, all)))
            }
            SwitchMessage::Error { kind, code, .. } => Ok(Some(Event::Refused { xid, kind, code })),
            // Switches also tell of packets, ports and rules that ended, which nobody asked for.
            _ => Ok(None),
        }
    }
}

/// Adds a part of an answer. Returns the whole answer after its last part. A part under another xid
/// begins another answer.
fn collect<T>(
    known: &mut (u32, Vec<T>),
    xid: u32,
    part: wire::CountersPart<T>,
) -> Result<Option<Vec<T>>, Malformed> {
    if known.0 != xid {
        *known = (xid, Vec::new());
    }
    if known.1.len() + part.entries.len() > ENTRIES_MAX {
        return Err(Malformed { what: "an answer with too many counters", offset: 0 });
    }
    known.1.extend(part.entries);
    Ok((!part.has_more).then(|| core::mem::take(&mut known.1)))
}
