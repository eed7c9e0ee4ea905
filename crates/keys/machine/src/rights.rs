//! The rights of clients to a key: ZooKeeper's access control lists.
//!
//! A call names the identities of its client, and a key has a list of rights. A right gives some
//! bits to one identity. An operation needs one bit:
//!
//! | operation | bit | on |
//! |---|---|---|
//! | read the value or the children, check the version | [`READ`] | the key |
//! | set the value | [`WRITE`] | the key |
//! | make a key | [`CREATE`] | the path above |
//! | delete a key | [`DELETE`] | the path above |
//! | set the rights | [`ADMIN`] | the key |
//!
//! Rights hold for one key and are not inherited. An identity of the scheme `super` may do
//! everything.

use std::net::IpAddr;
use std::sync::Arc;

use evenfall_core::{Malformed, Reader};

use crate::command::{put_bytes, text};

/// Reads the value and the children.
pub const READ: u32 = 1;
/// Sets the value.
pub const WRITE: u32 = 2;
/// Makes keys below.
pub const CREATE: u32 = 4;
/// Deletes keys below.
pub const DELETE: u32 = 8;
/// Sets rights.
pub const ADMIN: u32 = 16;
/// Everything.
pub const ALL: u32 = 31;
/// Most entries of a list of rights. An operation compares each of them with each identity of its
/// client.
pub const RIGHTS_MAX: usize = 128;
/// Most identities of a client.
pub const IDENTITIES_MAX: usize = 16;
/// Bytes that a right is counted for beside its texts.
const RIGHT_BYTES: usize = 96;

/// A client's identity in a scheme of identities.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AclIdentity {
    /// `world`, `digest`, `ip` or `super`.
    pub scheme: String,
    /// The name in the scheme.
    pub name: String,
}

/// Bits for an identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// A sum of bits.
    pub bits: u32,
    /// Who has them. A name of the scheme `ip` may end with the number of bits that count, such as
    /// `10.0.0.0/8`.
    pub who: AclIdentity,
}

/// The rights of a key. No entry means that everybody may do everything.
pub type Rights = Arc<[Right]>;

impl AclIdentity {
    /// An identity.
    pub fn new(scheme: &str, name: &str) -> Self {
        Self { scheme: scheme.to_owned(), name: name.to_owned() }
    }

    /// Everybody.
    pub fn world() -> Self {
        Self::new("world", "anyone")
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.scheme.as_bytes());
        put_bytes(out, self.name.as_bytes());
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { scheme: text(r)?.to_owned(), name: text(r)?.to_owned() })
    }

    /// Whether rights of the identity `other` hold for this identity.
    fn is(&self, other: &Self) -> bool {
        self.scheme == other.scheme
            && match self.scheme.as_str() {
                "ip" => is_in_network(&self.name, &other.name),
                _ => self.name == other.name,
            }
    }
}

/// Whether one of the identities has one of the bits.
pub fn allows(rights: &[Right], bits: u32, who: &[AclIdentity]) -> bool {
    let is_super = || who.iter().any(|identity| identity.scheme == "super");
    let has = |right: &Right| {
        right.bits & bits != 0
            && (right.who == AclIdentity::world() || who.iter().any(|one| one.is(&right.who)))
    };
    rights.is_empty() || rights.iter().any(has) || is_super()
}

/// An address and how many of its bits count.
pub fn network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(most);
    (bits <= most).then_some((address, bits))
}

fn is_in_network(name: &str, network_name: &str) -> bool {
    let (Ok(address), Some((network, bits))) = (name.parse(), network(network_name)) else {
        return false;
    };
    let differs = match (address, network) {
        (IpAddr::V4(one), IpAddr::V4(other)) => u128::from(one.to_bits() ^ other.to_bits()) << 96,
        (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() ^ other.to_bits(),
        _ => return false,
    };
    differs.leading_zeros() >= bits
}

pub(super) fn size(rights: &[Right]) -> usize {
    rights.iter().map(|right| RIGHT_BYTES + right.who.scheme.len() + right.who.name.len()).sum()
}

pub(super) fn put(out: &mut Vec<u8>, rights: &[Right]) {
    out.extend((rights.len() as u16).to_le_bytes());
    for right in rights {
        out.extend(right.bits.to_le_bytes());
        right.who.put(out);
    }
}

pub(super) fn read(r: &mut Reader<'_>) -> Result<Rights, Malformed> {
    let mut rights = Vec::new();
    for _ in 0..count(r, RIGHTS_MAX)? {
        rights.push(Right { bits: r.u32()?, who: AclIdentity::read(r)? });
    }
    Ok(rights.into())
}

pub(super) fn put_identities(out: &mut Vec<u8>, who: &[AclIdentity]) {
    out.extend((who.len() as u16).to_le_bytes());
    who.iter().for_each(|identity| identity.put(out));
}

pub(super) fn identities(r: &mut Reader<'_>) -> Result<Vec<AclIdentity>, Malformed> {
    let mut who = Vec::new();
    for _ in 0..count(r, IDENTITIES_MAX)? {
        who.push(AclIdentity::read(r)?);
    }
    Ok(who)
}

fn count(r: &mut Reader<'_>, most: usize) -> Result<u16, Malformed> {
    let count = r.u16()?;
    if usize::from(count) > most {
        return Err(r.malformed("too many rights or identities"));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_holds_for_its_identity_its_network_and_the_super_user() {
        let right = |bits, scheme, name| Right { bits, who: AclIdentity::new(scheme, name) };
        let rights = [
            right(READ, "digest", "ann:x"),
            right(WRITE, "ip", "10.1.0.0/16"),
            right(CREATE, "world", "anyone"),
        ];
        let ann = [AclIdentity::new("ip", "10.2.0.1"), AclIdentity::new("digest", "ann:x")];
        let near = [AclIdentity::new("ip", "10.1.255.1")];
        assert!(allows(&rights, READ, &ann) && !allows(&rights, READ, &near));
        assert!(allows(&rights, WRITE, &near) && !allows(&rights, WRITE, &ann));
        assert!(allows(&rights, CREATE, &[]) && !allows(&rights, DELETE, &ann));
        assert!(allows(&rights, DELETE, &[AclIdentity::new("super", "")]));
        assert!(allows(&[], ADMIN, &[]));
        let networks = ["10.0.0.0/33", "10.0.0", "x/8", "::1/129"];
        assert!(networks.iter().all(|text| network(text).is_none()));
        assert!(
            is_in_network("2001:db8::1", "2001:db8::/32") && !is_in_network("::1", "0.0.0.0/0")
        );
    }
}
