//! Sessions: calls that take effect once, from one connection at a time.
//!
//! **Exactly once.** A client that gets no answer sends its call again, perhaps to another node,
//! with the same session and the same sequence. The session keeps its last
//! [`REPLIES_MAX`] replies, so a call that was applied already is answered and not applied again.
//! Sequence 0 stands for a call that is never sent again. All sessions together keep replies of up
//! to [`REPLIES_BYTES_MAX`]; beyond that the oldest are forgotten, and a call that comes again is
//! refused.
//!
//! **One connection at a time.** A client that connects opens its session again, and each of its
//! calls names the revision of that opening. A call of a session that has ended is refused, and so
//! is a call of an earlier connection that is ordered after a later one: whoever has lost a session
//! changes nothing any more.
//!
//! **Sessions** end when their owner closes them, or by [`Command::Expire`], which is ordered like
//! any other call. A node proposes to expire a session that nobody has touched for its timeout. The
//! proposal names the touch that it counted from, so a touch that is ordered before it wins.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::{Applied, Command, KeyCall, KeyRefusal, KeyReply, Keys, OVERHEAD_BYTES};

/// Number of replies that a session keeps. A client may have this many calls without an answer.
pub const REPLIES_MAX: usize = 64;
/// Most bytes of the replies that all sessions keep.
pub const REPLIES_BYTES_MAX: usize = 32 << 20;
/// Sessions at once. Opening another is refused.
pub const SESSIONS_MAX: usize = 100_000;

/// A client that may ask again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySession {
    /// Silence after which nodes propose to expire the session: the longest for which a client has
    /// opened it.
    pub timeout_ms: u32,
    /// The password with which the client goes on with the session at another node.
    pub password: u64,
    /// Number of signs of life so far.
    pub touched: u64,
    /// The revision at which the client last opened the session or went on with it.
    pub opened: u64,
    /// Keys that are deleted with the session.
    pub(super) owned: BTreeSet<Arc<str>>,
    /// The last replies.
    pub(super) replies: VecDeque<KeptReply>,
    /// The highest sequence that is no longer among the replies.
    pub(super) forgotten: u64,
}

/// A reply that a session keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReply {
    /// The client's number of the call.
    pub sequence: u64,
    /// The revision of the call.
    pub revision: u64,
    /// The reply.
    pub reply: KeyReply,
}

impl Keys {
    /// Checks that a call that changes something comes from where its session is.
    pub(super) fn check_session(&self, call: &KeyCall) -> Result<(), KeyRefusal> {
        let is_checked = match call.command {
            Command::Change(_) | Command::ChangeBy(..) | Command::Close => call.session != 0,
            Command::Open { .. } | Command::Touch(_) => false,
            Command::Expire { .. } | Command::Reap { .. } | Command::Limit { .. } => false,
        };
        match self.sessions.get(&call.session) {
            _ if !is_checked => Ok(()),
            None => Err(KeyRefusal::NoSession),
            Some(session) if session.opened != call.opened => Err(KeyRefusal::Moved),
            Some(_) => Ok(()),
        }
    }

    /// Keeps the reply of the latest call for its session.
    pub(super) fn keep(&mut self, id: u64, sequence: u64, reply: &KeyReply) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.touched += 1;
        let kept = KeptReply { sequence, revision: self.revision, reply: reply.clone() };
        self.kept_bytes += kept.bytes();
        self.kept.insert(kept.revision, id);
        session.replies.push_back(kept);
        if session.replies.len() > REPLIES_MAX {
            self.forget(id);
        }
        while self.kept_bytes > REPLIES_BYTES_MAX
            && let Some((_, oldest)) = self.kept.first_key_value()
        {
            self.forget(*oldest);
        }
    }

    /// Forgets the oldest reply of a session.
    fn forget(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(oldest) = session.replies.pop_front() else { return };
        session.forgotten = session.forgotten.max(oldest.sequence);
        self.kept.remove(&oldest.revision);
        self.kept_bytes -= oldest.bytes();
    }

    pub(super) fn open(
        &mut self,
        id: u64,
        timeout_ms: u32,
        password: u64,
        is_new: bool,
    ) -> Result<(), KeyRefusal> {
        if let Some(known) = self.sessions.get_mut(&id) {
            if known.password != password {
                return Err(KeyRefusal::NoSession);
            }
            // Another node may have other limits, and the client may still count on what it had.
            known.timeout_ms = known.timeout_ms.max(timeout_ms);
            known.touched += 1;
            known.opened = self.revision;
            return Ok(());
        }
        if !is_new {
            return Err(KeyRefusal::NoSession);
        }
        if self.sessions.len() >= SESSIONS_MAX || id == 0 {
            return Err(KeyRefusal::Full);
        }
        let opened = self.revision;
        let session = KeySession { timeout_ms, password, opened, ..KeySession::default() };
        self.sessions.insert(id, session);
        Ok(())
    }

    pub(super) fn end(&mut self, id: u64, applied: &mut Applied) -> Result<(), KeyRefusal> {
        let session = self.sessions.remove(&id).ok_or(KeyRefusal::NoSession)?;
        for kept in &session.replies {
            self.kept.remove(&kept.revision);
            self.kept_bytes -= kept.bytes();
        }
        for key in session.owned {
            self.drop_key(key, &mut applied.changes);
        }
        applied.ended.push(id);
        Ok(())
    }
}

impl KeptReply {
    pub(super) fn bytes(&self) -> usize {
        OVERHEAD_BYTES + self.reply.bytes()
    }
}
