//! Datagrams and signatures that any holder of a key can make: what tests and instruments attack
//! nodes with. No role calls this module.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use evenfall_core::{EndKeys, NodeId, NodeKey, Timestamp};

use crate::ends::End;
use crate::seal::{Seal, SharedKey};
use crate::signing::{CHAIN_BYTES, FrameHasher, SIGNATURE_BYTES, SigningChain};
use crate::wire::{self, DatagramKind, Hop, OriginHeader, put_message};
use crate::{Archived, FrameSigner, SignatureVerifier};

/// Signs by a hash that everybody can make, for tests alone.
pub struct ToySigner(pub u8);

impl FrameSigner for ToySigner {
    fn sign_hash(&self, hash: &[u8; CHAIN_BYTES]) -> [u8; SIGNATURE_BYTES] {
        let half = *blake3::keyed_hash(&[self.0; 32], hash).as_bytes();
        core::array::from_fn(|at| half[at % half.len()])
    }
}

/// Knows several [`ToySigner`]s, by their numbers.
pub struct ToyVerifier(pub Vec<u8>);

impl SignatureVerifier for ToyVerifier {
    fn verify(&self, hash: &[u8; CHAIN_BYTES], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        self.0.iter().any(|signer| ToySigner(*signer).sign_hash(hash) == *signature)
    }
}

/// The signatures that a root makes of these frames, with their numbers: one where a number is left
/// out, and one behind the last frame.
pub fn sign_frames(
    signer: Arc<dyn FrameSigner>,
    stream: u32,
    run_id: u64,
    frames: &[Archived],
) -> Vec<(u64, Bytes)> {
    let hasher = FrameHasher::new(stream, run_id);
    let mut chain = SigningChain::new(signer, hasher, usize::from(u16::MAX));
    let mut signatures = Vec::new();
    for (at, frame) in frames.iter().enumerate() {
        let mut body = BytesMut::new();
        frame.messages.iter().for_each(|message| put_message(&mut body, message));
        let fixed = OriginHeader {
            count: frame.messages.len() as u16,
            run_id,
            first_message: frame.first_message,
            origin: frame.origin,
            deadline: frame.deadline,
            format: frame.format,
            ..OriginHeader::control(DatagramKind::Data, stream, 0, frame.sequence)
        };
        chain.add(Timestamp::ZERO, &fixed, &body);
        let number = frame.sequence + 1;
        if frames.get(at + 1).is_none_or(|next| next.sequence > number) {
            signatures.push((number, chain.sign_batch(number).freeze()));
        }
    }
    signatures
}

/// The datagram of a node with the key, as any holder of the key can make it.
pub fn forge(key: Option<&SharedKey>, fixed: &OriginHeader, hop: &Hop, body: &[u8]) -> Bytes {
    let mut seal = Seal::new(key);
    let fixed = OriginHeader { key_id: seal.key_id(), ..*fixed };
    let body = match fixed.kind.is_frame() {
        true => seal.seal(&fixed, body),
        false => Bytes::copy_from_slice(body),
    };
    [&seal.header(End::Everybody, &fixed, hop, &body)[..], &body].concat().into()
}

/// The control datagrams that a node can make for a victim where the run has node keys: one under
/// the shared key, and one under each of its own keys that the victim may try.
pub fn forge_all(
    shared: &SharedKey,
    own: &NodeKey,
    victim: NodeId,
    fixed: &OriginHeader,
    hop: &Hop,
    body: &[u8],
) -> Vec<Bytes> {
    let mut seal = Seal::new(Some(shared));
    seal.with_ends(EndKeys::Node(own.clone()));
    let fixed = OriginHeader { key_id: seal.control_key_id(), ..*fixed };
    // All kinds that go down have one key, that of this node and the victim below it.
    let ends = seal.ends.as_ref().expect("has keys");
    let as_upper = ends.key_to(End::Node(victim), DatagramKind::Beacon);
    let mut header = wire::encode_header(&fixed, hop);
    let mac = as_upper.mac(&[&header[..wire::MAC_OFFSET], body]);
    header[wire::MAC_OFFSET..].copy_from_slice(&mac.to_le_bytes());
    vec![
        forge(Some(shared), &fixed, hop, body),
        [&seal.header(End::Roots, &fixed, hop, body)[..], body].concat().into(),
        [&header[..], body].concat().into(),
    ]
}
