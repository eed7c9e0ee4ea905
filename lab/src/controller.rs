//! A controller of the switches of a lab: a rule for each read on each switch of its path.
//!
//! ```text
//!   coordinator --rule, barrier--> session of a switch --TCP--> switch
//!               <----- events ----- thread of a switch <--TCP--
//! ```
//!
//! A switch connects to the controller, and a thread reads what the switch sends. The coordinator
//! waits until every switch of a path has carried the rule out, so that no packet of a read goes
//! astray. Cookies are the names of flows.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenfall_files_flow::FlowId;

use crate::networks::{CONTROLLER_PORT, NetworkLab};
use crate::openflow::{Event, FlowMod, FlowRule, FlowStat, PacketMatch, SwitchSession};

/// Priority of the rules of reads, which is above that of all rules of the lab.
const PRIORITY: u16 = 100;
/// A switch removes a rule without packets after so many seconds, so that a controller that died
/// leaves no rules.
const IDLE_S: u16 = 60;
/// How long a switch may take to connect, or to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// The bytes of Ethernet, IP and TCP headers with timestamps in each packet. A switch counts them,
/// and a reader does not.
const HEADER_BYTES: u64 = 14 + 20 + 32;

/// The connection of one switch.
struct Switch {
    stream: TcpStream,
    session: Arc<Mutex<SwitchSession>>,
}

/// The number of a connection, and what came over it; `Err` when it has ended.
type Told = (usize, Result<Event, String>);

/// All switches of a lab.
pub struct Controller {
    /// By number of the switch.
    switches: Vec<Switch>,
    /// The number of the switch of each connection.
    numbers: Vec<usize>,
    told: Receiver<Told>,
    /// The switches of each flow's path.
    paths: BTreeMap<FlowId, Vec<usize>>,
    /// The seconds that each set-up of a path took.
    setups_s: Vec<f64>,
}

/// A way of a flow: its packets, and the port by which each switch sends them on.
pub struct PathSteps {
    /// The addresses of the sender and of the receiver.
    pub ends: [SocketAddrV4; 2],
    /// Switches with their ports.
    pub ports: Vec<(usize, u32)>,
}

fn write(stream: &TcpStream, session: &Mutex<SwitchSession>) -> io::Result<()> {
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    if session.is_behind() {
        return Err(io::Error::other("the switch does not read what it is sent"));
    }
    // The lock is held while the bytes leave, so that two threads do not mix theirs.
    let mut stream = stream;
    stream.write_all(&session.output())
}

/// Reads what a switch sends until the connection ends.
fn listen(
    number: usize,
    mut stream: &TcpStream,
    session: &Mutex<SwitchSession>,
    tell: &Sender<Told>,
) {
    let mut piece = vec![0; PIECE_BYTES];
    let ended = loop {
        let length = match stream.read(&mut piece) {
            Ok(0) => break "the switch closed its connection".to_owned(),
            Ok(length) => length,
            Err(error) => break error.to_string(),
        };
        let arrived = {
            let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
            session.arrive(&piece[..length])
        };
        match arrived {
            Ok(events) => {
                for event in events {
                    // The controller may have ended.
                    drop(tell.send((number, Ok(event))));
                }
            }
            Err(error) => break error.to_string(),
        }
        if let Err(error) = write(stream, session) {
            break error.to_string();
        }
    };
    drop(tell.send((number, Err(ended))));
}

impl Controller {
    /// Listens for the switches of a lab, and waits until all of them are ready.
    ///
    /// # Errors
    /// When a switch does not connect, or speaks another version.
    pub fn new(
        lab: &NetworkLab,
        count: usize,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, CONTROLLER_PORT);
        let listener = lab.within_switches(|| TcpListener::bind(address))?;
        let listener = listener.map_err(|error| format!("listen on {address}: {error}"))?;
        listener.set_nonblocking(true)?;
        let (tell, told) = channel();
        let (mut connections, end) = (Vec::new(), Instant::now() + PATIENCE);
        while connections.len() < count {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_nodelay(true)?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    let session = Arc::new(Mutex::new(SwitchSession::new()));
                    write(&stream, &session)?;
                    let number = connections.len();
                    let (own, shared, tell) = (stream.try_clone()?, session.clone(), tell.clone());
                    std::thread::spawn(move || listen(number, &own, &shared, &tell));
                    connections.push(Switch { stream, session });
                }
                Err(_) if Instant::now() > end => {
                    return Err(format!("{} of {count} switches connect", connections.len()).into());
                }
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        let (paths, setups_s) = (BTreeMap::new(), Vec::new());
        let numbers = vec![usize::MAX; count];
        let mut all = Self { switches: Vec::new(), numbers, told, paths, setups_s };
        for _ in 0..count {
            if let (connection, Event::Ready { datapath }) = all.event()? {
                // The datapath id of a switch is its number and one.
                all.numbers[connection] = (datapath as usize).wrapping_sub(1);
            }
        }
        let mut named: Vec<_> = all.numbers.iter().copied().zip(connections).collect();
        named.sort_by_key(|(number, _)| *number);
        if named.iter().map(|(number, _)| *number).ne(0..count) {
            return Err("the switches have other names than the lab gave them".into());
        }
        all.switches = named.into_iter().map(|(_, switch)| switch).collect();
        Ok(all)
    }

    /// The seconds that each set-up of a path has taken since the last call.
    pub fn setups_s(&mut self) -> Vec<f64> {
        std::mem::take(&mut self.setups_s)
    }

    /// Sets up the path of a flow, or another path between the same ends, and waits until all
    /// switches have carried it out. A rule for the same packets is replaced, and keeps its
    /// counters.
    ///
    /// # Errors
    /// When a switch refuses a rule, does not answer or is gone.
    pub fn set_up(&mut self, flow: FlowId, steps: &PathSteps) -> Result<(), String> {
        let begun = Instant::now();
        let [from, to] = steps.ends;
        let fits = PacketMatch {
            from: Some(*from.ip()),
            to: Some(*to.ip()),
            from_port: Some(from.port()),
            to_port: Some(to.port()),
        };
        let mut waiting = BTreeMap::new();
        for &(switch, port) in &steps.ports {
            let cookie = cookie(flow);
            let rule = FlowRule { cookie, fits, priority: PRIORITY, idle_s: IDLE_S, port };
            let barrier = self.send(switch, |session| {
                session.change(FlowMod::Add(rule));
                session.barrier()
            })?;
            waiting.insert(switch, barrier);
        }
        let before = self.paths.insert(flow, waiting.keys().copied().collect());
        while !waiting.is_empty() {
            if let (connection, Event::Done(xid)) = self.event()? {
                let switch = self.numbers[connection];
                if waiting.get(&switch) == Some(&xid) {
                    waiting.remove(&switch);
                }
            }
        }
        // Packets take the new path by now, so that nobody needs the rules beside it.
        for switch in before.into_iter().flatten() {
            if !self.paths[&flow].contains(&switch) {
                self.remove(switch, flow)?;
            }
        }
        self.setups_s.push(begun.elapsed().as_secs_f64());
        Ok(())
    }

    /// Removes the path of a flow.
    ///
    /// # Errors
    /// When a switch is gone.
    pub fn take_down(&mut self, flow: FlowId) -> Result<(), String> {
        for switch in self.paths.remove(&flow).unwrap_or_default() {
            self.remove(switch, flow)?;
        }
        Ok(())
    }

    /// The bytes that a switch has counted of each flow without their headers.
    ///
    /// # Errors
    /// When the switch does not answer or is gone.
    pub fn counted(&mut self, switch: usize) -> Result<BTreeMap<FlowId, u64>, String> {
        if self.paths.is_empty() {
            return Ok(BTreeMap::new());
        }
        let asked = self.send(switch, SwitchSession::ask_flows)?;
        loop {
            match self.event()? {
                (connection, Event::Flows(xid, all))
                    if self.numbers[connection] == switch && xid == asked =>
                {
                    return Ok(all.iter().filter_map(of_flow).collect());
                }
                _ => {}
            }
        }
    }

    fn remove(&self, switch: usize, flow: FlowId) -> Result<(), String> {
        let cookie = cookie(flow);
        self.send(switch, |session| session.change(FlowMod::Delete { cookie })).map(drop)
    }

    fn send(
        &self,
        switch: usize,
        say: impl FnOnce(&mut SwitchSession) -> u32,
    ) -> Result<u32, String> {
        let of = &self.switches[switch];
        let xid = say(&mut of.session.lock().unwrap_or_else(PoisonError::into_inner));
        write(&of.stream, &of.session).map_err(|error| format!("switch {switch}: {error}"))?;
        Ok(xid)
    }

    /// The next event of any switch.
    fn event(&self) -> Result<(usize, Event), String> {
        let named = |connection: usize| match self.numbers[connection] {
            usize::MAX => format!("connection {connection} of a switch"),
            number => format!("switch {number}"),
        };
        match self.told.recv_timeout(PATIENCE) {
            Ok((connection, Ok(Event::Refused { xid, kind, code }))) => Err(format!(
                "{} refuses message {xid}: error {kind}, code {code} of OpenFlow 1.3",
                named(connection)
            )),
            Ok((connection, Ok(event))) => Ok((connection, event)),
            Ok((connection, Err(error))) => Err(format!("{}: {error}", named(connection))),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("no switch answers within {PATIENCE:?}: the machine may be too busy"))
            }
            Err(RecvTimeoutError::Disconnected) => Err("all switches are gone".to_owned()),
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        for switch in &self.switches {
            // A connection that has ended already needs no end.
            drop(switch.stream.shutdown(std::net::Shutdown::Both));
        }
    }
}

/// The rules of the lab have the cookie 0.
fn cookie(flow: FlowId) -> u64 {
    flow.0 + 1
}

fn of_flow(counters: &FlowStat) -> Option<(FlowId, u64)> {
    let flow = FlowId(counters.cookie.checked_sub(1)?);
    let headers = counters.packets.saturating_mul(HEADER_BYTES);
    Some((flow, counters.bytes.saturating_sub(headers)))
}
