//! All keys and sessions as bytes.
//!
//! ```text
//!  version u8 (4), revision u64, time in ms u64, limit u64, has a limit u8,
//!  count u32, sessions, count u32, keys, count u32, votes
//!  key      key, has a value u8, value, created u64, modified u64, version u32, created ms u64,
//!           modified ms u64, kind, owner u64, births u32, children modified u64,
//!           version of rights u32, rights
//!  vote     key, revision u64, count u32, nodes u32 each
//!  session  id u64, timeout in ms u32, password u64, touched u64, opened u64, forgotten u64,
//!           count u8, replies: sequence u64, revision u64, reply
//! ```
//!
//! Children and the keys of sessions follow from the keys, which come in their order: a path stands
//! behind the path above it.

use std::collections::BTreeSet;

use bytes::Bytes;
use evenfall_core::{Malformed, Reader};

use crate::command::{optional, put_bytes, put_optional, text};
use crate::sessions::KeptReply;
use crate::{KeyEntry, KeyLifetime, KeyReply, KeySession, Keys, rights};

const VERSION: u8 = 4;

impl Keys {
    /// Everything, for a checkpoint.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.bytes);
        self.put(&mut out);
        out.into()
    }

    /// Appends what [`encode`](Self::encode) returns.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.extend(self.revision.to_le_bytes());
        out.extend(self.now_ms.to_le_bytes());
        out.extend((self.bytes_max as u64).to_le_bytes());
        out.push(u8::from(self.has_limit));
        out.extend((self.sessions.len() as u32).to_le_bytes());
        for (id, session) in &self.sessions {
            out.extend(id.to_le_bytes());
            out.extend(session.timeout_ms.to_le_bytes());
            out.extend(session.password.to_le_bytes());
            out.extend(session.touched.to_le_bytes());
            out.extend(session.opened.to_le_bytes());
            out.extend(session.forgotten.to_le_bytes());
            out.push(session.replies.len() as u8);
            for kept in &session.replies {
                out.extend(kept.sequence.to_le_bytes());
                out.extend(kept.revision.to_le_bytes());
                kept.reply.put(out);
            }
        }
        out.extend((self.entries.len() as u32).to_le_bytes());
        for (key, entry) in &self.entries {
            put_bytes(out, key.as_bytes());
            put_optional(out, entry.value.as_ref());
            out.extend(entry.created.to_le_bytes());
            out.extend(entry.modified.to_le_bytes());
            out.extend(entry.version.to_le_bytes());
            out.extend(entry.created_ms.to_le_bytes());
            out.extend(entry.modified_ms.to_le_bytes());
            entry.kind.put(out);
            out.extend(entry.owner.to_le_bytes());
            out.extend(entry.births.to_le_bytes());
            out.extend(entry.children_modified.to_le_bytes());
            out.extend(entry.rights_version.to_le_bytes());
            rights::put(out, &entry.rights);
        }
        out.extend((self.votes.len() as u32).to_le_bytes());
        for (key, (modified, nodes)) in &self.votes {
            put_bytes(out, key.as_bytes());
            out.extend(modified.to_le_bytes());
            out.extend((nodes.len() as u32).to_le_bytes());
            nodes.iter().for_each(|node| out.extend(node.to_le_bytes()));
        }
    }

    /// Keys out of a checkpoint.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are none of [`encode`](Self::encode).
    pub fn decode(snapshot: &Bytes) -> Result<Self, Malformed> {
        let r = &mut Reader::new(snapshot);
        if r.u8()? != VERSION {
            return Err(r.malformed("another version of snapshots"));
        }
        let (revision, now_ms, bytes_max) = (r.u64()?, r.u64()?, r.u64()?);
        let mut keys = Self::new(usize::try_from(bytes_max).unwrap_or(usize::MAX));
        (keys.revision, keys.now_ms, keys.has_limit) = (revision, now_ms, r.u8()? == 1);
        for _ in 0..r.u32()? {
            let (id, session) = session(r)?;
            for kept in &session.replies {
                keys.kept.insert(kept.revision, id);
                keys.kept_bytes += kept.bytes();
            }
            keys.sessions.insert(id, session);
        }
        for _ in 0..r.u32()? {
            let (key, entry) = (text(r)?, entry(r, snapshot)?);
            keys.remove(key);
            keys.insert(key.into(), entry);
        }
        for _ in 0..r.u32()? {
            let (key, modified, mut nodes) = (text(r)?, r.u64()?, BTreeSet::new());
            for _ in 0..r.u32()? {
                nodes.insert(r.u32()?);
            }
            keys.votes.insert(key.into(), (modified, nodes));
        }
        r.finish()?;
        Ok(keys)
    }
}

fn entry(r: &mut Reader<'_>, snapshot: &Bytes) -> Result<KeyEntry, Malformed> {
    // A short value would keep a long snapshot alive, so the value is copied.
    let value = optional(r, snapshot)?.map(|value| Bytes::copy_from_slice(&value));
    let (created, modified, version) = (r.u64()?, r.u64()?, r.u32()?);
    let (created_ms, modified_ms) = (r.u64()?, r.u64()?);
    let kind = KeyLifetime::read(r)?;
    let (owner, births, children_modified) = (r.u64()?, r.u32()?, r.u64()?);
    let (rights_version, rights) = (r.u32()?, rights::read(r)?);
    let children = BTreeSet::new();
    Ok(KeyEntry {
        value,
        created,
        modified,
        version,
        created_ms,
        modified_ms,
        kind,
        owner,
        children,
        births,
        children_modified,
        rights,
        rights_version,
    })
}

fn session(r: &mut Reader<'_>) -> Result<(u64, KeySession), Malformed> {
    let (id, timeout_ms, password) = (r.u64()?, r.u32()?, r.u64()?);
    let (touched, opened, forgotten, count) = (r.u64()?, r.u64()?, r.u64()?, r.u8()?);
    let mut session =
        KeySession { timeout_ms, password, touched, opened, forgotten, ..KeySession::default() };
    for _ in 0..count {
        let (sequence, revision, reply) = (r.u64()?, r.u64()?, KeyReply::read(r)?);
        session.replies.push_back(KeptReply { sequence, revision, reply });
    }
    Ok((id, session))
}
