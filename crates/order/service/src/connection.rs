//! The connection of a client: the answers that the client waits for, in order, and the thread that
//! sends them.

use std::collections::VecDeque;
use std::io::{self, BufWriter, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender};

use evenfall_order_machine::keys::Reply;

use crate::jute::Message;
use crate::operations::{Query, Shape};
use crate::replica::Answer;
use crate::shared::{Shared, lock};
use crate::watches::Event;

/// Requests of a client that wait for their answers. The reader stops at the next one, and so does
/// the client.
pub const SLOTS_MAX: usize = 1_024;
/// Events that wait for a client that reads too slowly. The connection is then closed, and the
/// client sets its watches again.
const EVENTS_MAX: usize = 100_000;
/// The xid of an event.
const EVENT_XID: i32 = -1;
/// The state that an event tells: connected.
const CONNECTED: i32 = 3;

/// What is answered next.
#[derive(Debug)]
pub enum Slot {
    /// A write, when its answer has come.
    Write(i32, Shape, Receiver<Answer>),
    /// A read, out of the keys at its turn.
    Read(i32, Query),
    /// A message that is ready.
    Ready(Message),
    /// Nothing but the events that have come.
    Events,
    /// Nothing: the reader has ended.
    End,
}

/// A client that is connected.
#[derive(Debug)]
pub struct Connection {
    /// The number of the connection.
    pub id: u64,
    stream: TcpStream,
    session: AtomicU64,
    /// The client has asked to close its session, and still waits for the answer.
    is_leaving: AtomicBool,
    slots: SyncSender<Slot>,
    events: Mutex<VecDeque<Event>>,
}

impl Connection {
    /// A client on this stream, with the queue of its answers.
    pub fn new(id: u64, stream: TcpStream, slots: SyncSender<Slot>) -> Self {
        let (session, is_leaving) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { id, stream, session, is_leaving, slots, events: Mutex::default() }
    }

    /// The session; 0 before there is one.
    pub fn session(&self) -> u64 {
        self.session.load(Relaxed)
    }

    /// The connection is of this session from now on.
    pub fn begin(&self, session: u64) {
        self.session.store(session, Relaxed);
    }

    /// The client has asked to close its session: its connection ends behind the answer.
    pub fn leave(&self) {
        self.is_leaving.store(true, Relaxed);
    }

    /// The session has ended, so the connection ends, unless the client waits for the answer.
    pub fn expire(&self) {
        if !self.is_leaving.load(Relaxed) {
            self.end();
        }
    }

    /// Queues an answer behind the earlier ones. Whether the writer still takes any.
    pub fn push(&self, slot: Slot) -> bool {
        self.slots.send(slot).is_ok()
    }

    /// Queues an event.
    pub fn tell(&self, event: Event) {
        let mut events = lock(&self.events);
        if events.len() >= EVENTS_MAX {
            return self.end();
        }
        events.push_back(event);
        // A writer whose queue is full looks at the events with its next answer.
        let _ = self.slots.try_send(Slot::Events);
    }

    /// Closes the connection; both threads then end.
    pub fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Answers until the reader is gone or the client is.
    pub fn answer(&self, shared: &Shared, slots: &Receiver<Slot>) {
        let stream = match self.stream.try_clone() {
            Ok(stream) => stream,
            Err(_) => return self.end(),
        };
        let mut out = BufWriter::new(stream);
        while let Ok(slot) = slots.recv() {
            let mut next = Some(slot);
            while let Some(slot) = next {
                if matches!(slot, Slot::End) {
                    let _ = out.flush();
                    return;
                }
                if self.answer_one(shared, slot, &mut out).is_err() {
                    return self.end();
                }
                next = slots.try_recv().ok();
            }
            if out.flush().is_err() {
                return self.end();
            }
        }
    }

    fn answer_one(
        &self,
        shared: &Shared,
        slot: Slot,
        out: &mut BufWriter<TcpStream>,
    ) -> io::Result<()> {
        let (events, message) = match slot {
            Slot::Events | Slot::End => (self.take_events(), None),
            Slot::Ready(message) => (self.take_events(), Some(message)),
            Slot::Read(xid, query) => {
                // The events of all changes that the read sees go first, and those of later
                // changes go behind it: the watch that the read sets is known to the client then.
                let keys = shared.keys();
                let message = query.answer(xid, &keys, shared, self);
                (self.take_events(), Some(message))
            }
            Slot::Write(xid, shape, receiver) => {
                out.flush()?;
                let (reply, revision) = match receiver.recv() {
                    Ok(Answer::Applied(reply, revision)) => (reply, revision),
                    Ok(Answer::Unknown) | Err(_) => {
                        // The client learns that it has to ask again.
                        return Err(io::ErrorKind::ConnectionAborted.into());
                    }
                };
                let is_end = matches!((&shape, &reply), (Shape::Close, Reply::Done(_)));
                let message = shape.answer(xid, revision, &reply);
                if is_end {
                    out.write_all(&message.finish())?;
                    out.flush()?;
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                (self.take_events(), Some(message))
            }
        };
        for event in events {
            let message = Message::reply(EVENT_XID, u64::MAX, 0);
            let message = message.int(event.told as i32).int(CONNECTED).text(&event.path);
            out.write_all(&message.finish())?;
        }
        match message {
            Some(message) => out.write_all(&message.finish()),
            None => Ok(()),
        }
    }

    fn take_events(&self) -> VecDeque<Event> {
        core::mem::take(&mut *lock(&self.events))
    }
}
