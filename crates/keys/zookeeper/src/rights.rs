//! ZooKeeper's schemes of identities, and its lists of rights in requests and answers.
//!
//! | scheme | who | proof |
//! |---|---|---|
//! | `world` | `anyone` | none |
//! | `auth` | in a list of rights: all that the client has proven | |
//! | `digest` | `NAME:BASE64(SHA1(NAME:PASSWORD))` | `NAME:PASSWORD` |
//! | `ip` | the address of the client; in a list of rights also a network | none |
//! | `super` | may do everything | the digest that the setting `superDigest` names |

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenfall_core::Malformed;
use evenfall_keys_machine::jute::{Fields, JuteMessage};
use evenfall_keys_machine::rights::{ADMIN, ALL, RIGHTS_MAX, allows, network};
use evenfall_keys_machine::{AclIdentity, KeyEntry, KeyRefusal, Right};
use sha1::{Digest as _, Sha1};

/// The identities that a proof shows; `None` when the scheme is unknown or the proof is wrong.
pub fn authenticate(
    scheme: &str,
    proof: &[u8],
    super_digest: Option<&str>,
    address: IpAddr,
) -> Option<Vec<AclIdentity>> {
    match scheme {
        "digest" => {
            // ZooKeeper hashes the text that Java makes of the bytes.
            let proof = String::from_utf8_lossy(proof);
            let name = proof.split(':').next()?;
            let digest = format!("{name}:{}", STANDARD.encode(Sha1::digest(proof.as_bytes())));
            let is_super = super_digest == Some(digest.as_str());
            let mut shown = vec![AclIdentity::new("digest", &digest)];
            shown.extend(is_super.then(|| AclIdentity::new("super", "")));
            Some(shown)
        }
        "ip" => Some(vec![AclIdentity::new("ip", &address.to_string())]),
        _ => None,
    }
}

/// The rights in a request, or why they are refused. An empty list gives all rights to everybody.
pub fn read(
    fields: &mut Fields<'_>,
    who: &[AclIdentity],
) -> Result<Result<Vec<Right>, KeyRefusal>, Malformed> {
    let count = fields.count()?;
    let is_short = usize::try_from(count).is_ok_and(|count| count <= RIGHTS_MAX);
    let (mut rights, mut is_valid) = (Vec::new(), count > 0 && is_short);
    for _ in 0..count {
        let (bits, scheme, name) = (fields.int()? as u32, fields.text()?, fields.text()?);
        let named = vec![AclIdentity::new(&scheme, &name)];
        let new = match &*scheme {
            "world" if name == "anyone" => named,
            "digest" if is_digest(&name) => named,
            "ip" if network(&name).is_some() => named,
            "auth" => who.iter().filter(|own| own.scheme == "digest").cloned().collect(),
            _ => Vec::new(),
        };
        is_valid &= !new.is_empty() && rights.len() + new.len() <= RIGHTS_MAX;
        for who in new {
            let right = Right { bits, who };
            if is_valid && !rights.contains(&right) {
                rights.push(right);
            }
        }
    }
    if !is_valid {
        return Ok(Err(KeyRefusal::BadRights));
    }
    let all = Right { bits: ALL, who: AclIdentity::world() };
    Ok(Ok(if rights == [all] { Vec::new() } else { rights }))
}

/// A name, a colon and a digest.
fn is_digest(name: &str) -> bool {
    name.split_once(':').is_some_and(|(_, digest)| !digest.is_empty() && !digest.contains(':'))
}

/// Adds the rights of a key. A client that may not change these rights does not see the digests in
/// them.
pub fn put(message: JuteMessage, entry: &KeyEntry, who: &[AclIdentity]) -> JuteMessage {
    if entry.rights.is_empty() {
        return message.int(1).int(ALL as i32).text("world").text("anyone");
    }
    let hides = !allows(&entry.rights, ADMIN, who);
    let count = message.int(entry.rights.len() as i32);
    entry.rights.iter().fold(count, |message, right| {
        let AclIdentity { scheme, name } = &right.who;
        let message = message.int(right.bits as i32).text(scheme);
        match (scheme.as_str(), name.split_once(':')) {
            ("digest", Some((name, _))) if hides => message.text(&format!("{name}:x")),
            _ => message.text(name),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_zookeeper_and_the_super_digest_makes_a_super_user() {
        // The example of ZooKeeper's DigestAuthenticationProvider.
        let digest = "super:D/InIHSb7yEEbrWz8b9l71RjZJU=";
        let here = IpAddr::from([127, 0, 0, 1]);
        let shown = authenticate("digest", b"super:test", Some(digest), here).expect("a digest");
        assert_eq!(shown, [AclIdentity::new("digest", digest), AclIdentity::new("super", "")]);
        let other = authenticate("digest", b"super:best", Some(digest), here).expect("a digest");
        assert_eq!(other.len(), 1);
        assert_eq!(authenticate("sasl", b"x", None, here), None);
        // What ZooKeeper 3.8 makes of a proof that is not UTF-8: the digest of the text.
        let odd = authenticate("digest", b"a\xff:b", None, here).expect("a digest");
        assert_eq!(odd, authenticate("digest", "a\u{fffd}:b".as_bytes(), None, here).expect("one"));
    }

    #[test]
    fn lists_of_rights_are_checked_and_auth_stands_for_what_was_proven() {
        let list = |rights: &[(i32, &str, &str)]| {
            let message = JuteMessage::default().int(rights.len() as i32);
            let message = rights.iter().fold(message, |m, (b, s, n)| m.int(*b).text(s).text(n));
            message.finish()[4..].to_vec()
        };
        let ann = [AclIdentity::new("ip", "127.0.0.1"), AclIdentity::new("digest", "ann:x")];
        let read =
            |bytes: &[u8], who: &[AclIdentity]| read(&mut Fields::new(bytes), who).expect("whole");
        assert_eq!(read(&list(&[(31, "world", "anyone")]), &[]), Ok(vec![]));
        let own = read(&list(&[(31, "auth", ""), (31, "digest", "ann:x")]), &ann);
        assert_eq!(own, Ok(vec![Right { bits: 31, who: AclIdentity::new("digest", "ann:x") }]));
        let bad: [&[(i32, &str, &str)]; 6] = [
            &[],
            &[(31, "auth", "")],
            &[(31, "world", "somebody")],
            &[(31, "digest", "ann")],
            &[(31, "ip", "10.0.0.0/40")],
            &[(31, "world", "anyone"), (1, "no such scheme", "ann")],
        ];
        for list_of in bad {
            assert_eq!(read(&list(list_of), &[]), Err(KeyRefusal::BadRights), "{list_of:?}");
        }
    }
}
