use super::*;
use crate::forging::{ToySigner, ToyVerifier};
use crate::signing::*;
use crate::wire::DatagramKind;
use evenfall_core::{Format, NodeId, Prng, SyncTime, TrafficClass};

const RUN: u64 = 0x77;
const PATIENCE: Duration = Duration::from_secs(6);
const VIA: NodeId = NodeId(9);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_nanos(1_000_000_000 + ms * 1_000_000)
}

fn fixed(kind: DatagramKind, sequence: u64) -> OriginHeader {
    OriginHeader {
        class: TrafficClass::Live,
        count: u16::from(kind == DatagramKind::Data),
        run_id: RUN,
        first_message: sequence,
        origin: SyncTime::from_nanos(sequence * 1_000),
        deadline: (kind == DatagramKind::Data)
            .then(|| SyncTime::from_nanos(sequence * 1_000 + 500)),
        format: Format(3),
        ..OriginHeader::control(kind, 0, 5, sequence)
    }
}

fn chain(signer: u8) -> SigningChain {
    SigningChain::new(Arc::new(ToySigner(signer)), FrameHasher::new(0, RUN), 1_300)
}

fn check(rule: ReleaseAfter, from: u64) -> SignatureCheck {
    check_by(Arc::new(ToyVerifier(vec![1, 2])), rule, from)
}

fn check_by(verifier: Arc<dyn SignatureVerifier>, rule: ReleaseAfter, from: u64) -> SignatureCheck {
    let mut check = SignatureCheck::new(verifier, rule, PATIENCE);
    check.begin(at(0), 0, RUN, from);
    check
}

/// Takes anybody's signature for a root's.
struct AnySigner;

impl SignatureVerifier for AnySigner {
    fn verify(&self, _: &[u8; CHAIN_BYTES], _: &[u8; SIGNATURE_BYTES]) -> bool {
        true
    }
}

/// A frame as it is sent: its header, and its messages or the body of a signature.
#[derive(Clone, Debug)]
struct Sent {
    fixed: OriginHeader,
    body: Vec<u8>,
}

/// A feed of frames and signatures. `takeover` is the frame from which on another root leads.
fn feed(prng: &mut Prng, frames: u64, takeover: Option<u64>) -> Vec<Sent> {
    let mut chain = chain(1);
    let mut sent = Vec::new();
    for number in 0..frames {
        if takeover == Some(number) {
            let (last, open) = (chain.last, core::mem::take(&mut chain.digests));
            chain = SigningChain::new(Arc::new(ToySigner(2)), FrameHasher::new(0, RUN), 1_300)
                .succeed(FrameHasher::new(0, RUN), last);
            chain.digests = open;
        }
        let next = sent.len() as u64;
        let body = vec![number as u8; 1 + prng.below(90) as usize];
        let fixed = fixed(DatagramKind::Data, next);
        chain.add(at(0), &fixed, &body);
        sent.push(Sent { fixed, body });
        if chain.is_full() || number + 1 == frames || prng.chance(0.2) {
            let number = sent.len() as u64;
            let body = chain.sign_batch(number).to_vec();
            sent.push(Sent { fixed: self::fixed(DatagramKind::Signature, number), body });
        }
    }
    sent
}

fn give(check: &mut SignatureCheck, now: Timestamp, sent: &Sent) {
    let Sent { fixed, body } = sent;
    match fixed.kind {
        DatagramKind::Signature => check.take_signature(now, fixed.sequence, body, VIA),
        _ => check.take_frame(now, fixed, body, VIA),
    }
    check.check(now, true);
}

fn cause(check: &mut SignatureCheck) -> Option<(u64, BreakCause)> {
    check.poll_break().map(|broken| (broken.number, broken.cause))
}

#[test]
fn a_signature_survives_the_wire_and_a_broken_one_is_refused() {
    let mut prng = Prng::new(1);
    let sent = feed(&mut prng, 40, None);
    let signature = sent.iter().find(|sent| sent.fixed.kind == DatagramKind::Signature).unwrap();
    let batch = SignedBatch::decode(&signature.body).unwrap();
    assert_eq!(batch.encode(), signature.body);
    for length in 0..signature.body.len() {
        assert!(SignedBatch::decode(&signature.body[..length]).is_err());
    }
    let longer = [&signature.body[..], &[0]].concat();
    assert!(SignedBatch::decode(&longer).is_err());
    assert!(SignedBatch::decode(&[0; 100]).is_err(), "of no frames");
}

#[test]
fn a_signature_has_as_many_digests_as_its_datagram_has_room_for() {
    for (room, most) in [(0, 1), (168 - 88, 1), (1_344, 64), (60_000, 64), (256 - 88 - 16, 3)] {
        let mut chain = SigningChain::new(Arc::new(ToySigner(1)), FrameHasher::new(0, RUN), room);
        while !chain.is_full() {
            let number = chain.digests.len() as u64;
            chain.add(at(0), &fixed(DatagramKind::Data, number), b"x");
        }
        assert_eq!(chain.digests.len(), most, "{room}");
    }
}

/// What a check does wrong in a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// Frames without a signature are released as verified.
    TrustsTheTail,
    /// A digest does not depend on the frame.
    TakesAnyFrame,
    /// The root signs two frames in the wrong order.
    SignsOutOfOrder,
    /// A signature is taken without a look at its signer.
    TakesAnySigner,
    /// Digests of frames that have not arrived are forgotten.
    ForgetsEarlySignatures,
    /// A successor begins a chain of its own.
    BeginsAnotherChain,
}

/// Delivers a feed with losses and in another order, to a receiver that may join late. Perhaps one
/// frame is another's forgery. Says which promise was broken.
fn trial(seed: u64, flaw: Option<Flaw>) -> Result<(), String> {
    let mut prng = Prng::new(seed);
    let frames = 1 + prng.below(150);
    let takeover = prng.chance(0.3).then(|| prng.below(frames));
    let mut sent = feed(&mut prng, frames, takeover);
    if flaw == Some(Flaw::BeginsAnotherChain) {
        resign(&mut sent, |_, batch| batch.before = [7; CHAIN_BYTES]);
    }
    if flaw == Some(Flaw::SignsOutOfOrder) {
        resign(&mut sent, |_, batch| batch.digests.reverse());
    }
    let from = if prng.chance(0.3) { prng.below(sent.len() as u64) } else { 0 };
    let genuine = sent.clone();
    let forged = prng.chance(0.4).then(|| prng.below(sent.len() as u64) as usize);
    if let Some(at) = forged {
        forge(&mut prng, &mut sent[at]);
    }
    let loss = if prng.chance(0.5) { 0.1 } else { 0.0 };
    let mut order: Vec<usize> = (0..sent.len()).filter(|_| !prng.chance(loss)).collect();
    for at in 1..order.len() {
        if prng.chance(0.3) {
            let other = at - prng.below(at.min(20) as u64) as usize;
            order.swap(at, other);
        }
    }
    let rule = if prng.chance(0.5) { ReleaseAfter::Verified } else { ReleaseAfter::Deadline };
    let mut check = match flaw {
        Some(Flaw::TakesAnySigner) => check_by(Arc::new(AnySigner), rule, from),
        _ => check(rule, from),
    };
    for (turn, &which) in order.iter().enumerate() {
        let now = at(turn as u64);
        let shown = match flaw {
            Some(Flaw::TakesAnyFrame) if sent[which].fixed.kind == DatagramKind::Data => {
                &genuine[which]
            }
            _ => &sent[which],
        };
        give(&mut check, now, shown);
        if flaw == Some(Flaw::ForgetsEarlySignatures) {
            check.known.clear();
        }
    }
    check.check(at(order.len() as u64 + 2), true);
    if flaw == Some(Flaw::TrustsTheTail) {
        check.pending.clear();
    }
    judge(&sent, &order, (from, forged), &mut check)
}

/// Changes the signatures of a feed, and signs them again.
fn resign(sent: &mut [Sent], change: impl Fn(usize, &mut SignedBatch)) {
    let hasher = FrameHasher::new(0, RUN);
    for (at, sent) in sent.iter_mut().enumerate() {
        if sent.fixed.kind == DatagramKind::Signature {
            let mut batch = SignedBatch::decode(&sent.body).unwrap();
            change(at, &mut batch);
            let hash = batch.chain_hash(&hasher, sent.fixed.sequence);
            batch.signature = ToySigner(1).sign_hash(&hash);
            sent.body = batch.encode().to_vec();
        }
    }
}

/// Changes a frame as somebody can who holds the shared key.
fn forge(prng: &mut Prng, sent: &mut Sent) {
    if sent.fixed.kind == DatagramKind::Signature {
        let at = prng.below(sent.body.len() as u64) as usize;
        sent.body[at] ^= 1 << prng.below(8);
        return;
    }
    match prng.below(6) {
        0 => sent.fixed.first_message += 1,
        1 => sent.fixed.origin = SyncTime::from_nanos(sent.fixed.origin.nanos() + 1),
        2 => sent.fixed.deadline = None,
        3 => sent.fixed.format = Format(4),
        4 => sent.fixed.count += 1,
        _ => sent.body[0] ^= 1,
    }
}

/// Compares a check with what a check must know.
fn judge(
    sent: &[Sent],
    order: &[usize],
    (from, forged): (u64, Option<usize>),
    check: &mut SignatureCheck,
) -> Result<(), String> {
    let came = |number: usize| order.contains(&number);
    let signature_of = |number: usize| {
        (number..sent.len())
            .find(|at| sent[*at].fixed.kind == DatagramKind::Signature)
            .expect("a last one")
    };
    let is_checked = |number: &usize| {
        sent[*number].fixed.kind == DatagramKind::Data
            && *number as u64 >= from
            && came(*number)
            && came(signature_of(*number))
    };
    let forgery_shows = forged.is_some_and(|at| match sent[at].fixed.kind {
        DatagramKind::Signature => came(at) && at as u64 >= from,
        _ => is_checked(&at),
    });
    let broken = check.poll_break();
    if broken.is_some() != forgery_shows {
        return Err(format!("forged {forged:?}, from {from}: {broken:?}"));
    }
    if let Some(broken) = broken {
        let is_named = forged.is_some_and(|at| broken.number == at as u64);
        return if is_named { Ok(()) } else { Err(format!("{forged:?} was named {broken:?}")) };
    }
    let wanted = (0..sent.len()).filter(is_checked).count() as u64;
    if check.counts().frames != wanted {
        return Err(format!("{} of {wanted} frames verified", check.counts().frames));
    }
    let is_open = |number: &usize| {
        sent[*number].fixed.kind == DatagramKind::Data
            && *number as u64 >= from
            && came(*number)
            && !came(signature_of(*number))
    };
    let first_open = (0..sent.len()).find(is_open);
    if check.is_settled() != first_open.is_none() {
        return Err(format!("settled although {first_open:?} has no signature"));
    }
    if let Some(open) = first_open
        && check.rule() == ReleaseAfter::Verified
        && check.permits(open as u64)
    {
        return Err(format!("{open} is released before it is verified"));
    }
    Ok(())
}

#[test]
fn every_frame_with_its_signature_is_verified_and_each_forgery_is_named() {
    for seed in 0..2_000 {
        if let Err(why) = trial(seed, None) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn each_flaw_of_a_check_is_noticed() {
    for flaw in [
        Flaw::TrustsTheTail,
        Flaw::TakesAnyFrame,
        Flaw::SignsOutOfOrder,
        Flaw::TakesAnySigner,
        Flaw::ForgetsEarlySignatures,
        Flaw::BeginsAnotherChain,
    ] {
        let seed = (0..200).find(|seed| trial(*seed, Some(flaw)).is_err());
        assert!(seed.is_some(), "{flaw:?} passes 200 seeds");
    }
}

#[test]
fn a_frame_without_a_signature_breaks_the_stream_when_its_patience_ends() {
    let mut check = check(ReleaseAfter::Deadline, 0);
    check.take_frame(at(0), &fixed(DatagramKind::Data, 0), b"real", VIA);
    assert_eq!(check.poll_timeout(), Some(at(0) + PATIENCE));
    check.check(at(5_999), true);
    assert!(!check.is_broken() && !check.is_settled());
    check.check(at(6_000), true);
    assert_eq!(cause(&mut check), Some((0, BreakCause::Unsigned)));
    assert_eq!(cause(&mut check), None, "told once");
    assert_eq!(check.poll_timeout(), None);
}

#[test]
fn a_frame_far_ahead_of_the_feed_is_named_while_the_feed_goes_on() {
    let mut prng = Prng::new(4);
    let mut check = check(ReleaseAfter::Deadline, 0);
    check.take_frame(at(0), &fixed(DatagramKind::Data, 60_000), b"forged", VIA);
    for (ms, sent) in (1_000..).step_by(60).zip(feed(&mut prng, 200, None)) {
        give(&mut check, at(ms), &sent);
    }
    assert_eq!(cause(&mut check), Some((60_000, BreakCause::Unsigned)));
}

#[test]
fn a_signature_of_another_run_stream_or_number_is_not_the_roots() {
    let body = |hasher: FrameHasher, number: u64| {
        let mut chain = SigningChain::new(Arc::new(ToySigner(1)), hasher, 1_300);
        chain.add(at(0), &fixed(DatagramKind::Data, 0), b"real");
        chain.sign_batch(number)
    };
    for (hasher, number) in [
        (FrameHasher::new(0, RUN + 1), 1),
        (FrameHasher::new(1, RUN), 1),
        (FrameHasher::new(0, RUN), 2),
    ] {
        let mut check = check(ReleaseAfter::Deadline, 0);
        check.take_signature(at(0), 1, &body(hasher, number), VIA);
        check.check(at(2), true);
        assert_eq!(cause(&mut check), Some((1, BreakCause::WrongSignature)));
    }
    let mut check = check(ReleaseAfter::Deadline, 0);
    check.take_signature(at(0), 1, b"no signature", VIA);
    assert_eq!(cause(&mut check), Some((1, BreakCause::WrongSignature)));
}

#[test]
fn two_histories_of_one_root_are_noticed_in_either_order() {
    let mut sent = feed(&mut Prng::new(3), 2 * BATCH_FRAMES_MAX as u64, None);
    sent.retain(|sent| sent.fixed.kind == DatagramKind::Signature);
    let mut other = sent.clone();
    resign(&mut other[..1], |_, batch| batch.digests[0] = [0; DIGEST_BYTES]);
    for pair in [[&other[0], &sent[1]], [&sent[1], &other[0]]] {
        let mut check = check(ReleaseAfter::Deadline, 0);
        pair.into_iter().for_each(|sent| give(&mut check, at(0), sent));
        let named = pair[1].fixed.sequence;
        assert_eq!(cause(&mut check), Some((named, BreakCause::OtherHistory)));
    }
}

/// A feed, by its signatures: each batch ends with one.
fn batches() -> Vec<Vec<Sent>> {
    let sent = feed(&mut Prng::new(3), 500, None);
    let batches = sent.split_inclusive(|sent| sent.fixed.kind == DatagramKind::Signature);
    batches.map(<[Sent]>::to_vec).collect()
}

#[test]
fn the_chain_goes_on_behind_a_gap_and_a_late_signature_closes_the_gap() {
    let batches = batches();
    let mut check = check(ReleaseAfter::Verified, 0);
    let give_all = |check: &mut SignatureCheck, ms: u64, batch: &[Sent]| {
        batch.iter().for_each(|sent| give(check, at(ms), sent));
    };
    for (ms, batch) in [0, 1, 4, 5].into_iter().zip([0, 1, 4, 5]) {
        give_all(&mut check, ms, &batches[batch]);
    }
    // The first signature of the run, and the one behind the gap.
    assert_eq!((check.counts().signatures, check.counts().anchors), (4, 2));
    assert!(check.is_settled());
    // Repair brings the later batch first.
    give_all(&mut check, 900, &batches[3]);
    give_all(&mut check, 901, &batches[2]);
    let frames: usize = batches[..6].iter().map(|batch| batch.len() - 1).sum();
    assert_eq!((check.counts().frames, cause(&mut check)), (frames as u64, None));
    assert!(check.is_settled());
}

#[test]
fn a_signature_that_comes_late_and_tells_another_history_is_named() {
    let batches = batches();
    // The root itself signs another history of the missing batch.
    for (late, change) in [(2, 0), (2, 1), (3, 0)] {
        let mut check = check(ReleaseAfter::Deadline, 0);
        for batch in [0, 1, 4] {
            batches[batch].iter().for_each(|sent| give(&mut check, at(0), sent));
        }
        let mut other = batches[late].clone();
        resign(&mut other, |_, batch| match change {
            0 => batch.digests[0] = [0; DIGEST_BYTES],
            _ => batch.before = [7; CHAIN_BYTES],
        });
        let signature = other.last().expect("a signature");
        // Batch 2 follows batch 1, and batch 3 is followed by batch 4.
        let is_linked = (late, change) != (2, 0);
        give(&mut check, at(900), signature);
        let named = is_linked.then_some((signature.fixed.sequence, BreakCause::OtherHistory));
        assert_eq!(cause(&mut check), named, "{late}, {change}");
        if !is_linked {
            // The genuine batch behind it shows the other history.
            let next = batches[3].last().expect("a signature");
            give(&mut check, at(901), next);
            let named = (next.fixed.sequence, BreakCause::OtherHistory);
            assert_eq!(cause(&mut check), Some(named));
        }
    }
}

#[test]
fn a_receiver_that_joins_late_begins_with_any_signature_and_checks_all_behind_it() {
    let all = batches();
    let is_long = |at: &usize| all[*at].len() > 4;
    let batches = &all[(1..all.len()).find(is_long).expect("a batch of four frames")..];
    let first = &batches[0];
    // Its place begins in the middle of a batch.
    let from = first[first.len() / 2].fixed.sequence;
    let mut check = check(ReleaseAfter::Verified, from);
    for batch in batches {
        batch.iter().for_each(|sent| give(&mut check, at(0), sent));
    }
    let sent = || batches.iter().flatten().filter(|sent| sent.fixed.kind == DatagramKind::Data);
    let behind = sent().filter(|sent| sent.fixed.sequence >= from).count() as u64;
    let counts = check.counts();
    let signatures = batches.len() as u64;
    assert_eq!((counts.frames, counts.anchors, counts.signatures), (behind, 1, signatures));
    assert_eq!(counts.unsigned, sent().count() as u64 - behind);
    assert!(check.is_settled());
    // A frame of its first batch that is not the root's is named.
    let mut check = self::check(ReleaseAfter::Verified, from);
    for (at_frame, sent) in first.iter().enumerate() {
        let mut sent = sent.clone();
        if at_frame == first.len() - 2 {
            sent.body[0] ^= 1;
        }
        give(&mut check, at(0), &sent);
    }
    let named = (first[first.len() - 2].fixed.sequence, BreakCause::OtherFrame);
    assert_eq!(cause(&mut check), Some(named));
}

#[test]
fn a_check_waits_for_a_moment_without_a_release_but_not_long() {
    let sent = feed(&mut Prng::new(3), 1, None);
    let mut check = check(ReleaseAfter::Deadline, 0);
    check.take_frame(at(0), &sent[0].fixed, &sent[0].body, VIA);
    check.take_signature(at(1), 1, &sent[1].body, VIA);
    assert!(!check.check(at(1), false), "a release is near");
    assert_eq!(check.poll_timeout(), Some(at(1) + CHECK_WITHIN));
    assert!(check.check(at(2), false));
    assert!(check.is_settled());
    let counts = check.counts();
    assert_eq!((counts.verified, counts.signatures, counts.verify_ns_max), (1, 1, 2_000_000));
}

#[test]
fn what_waits_is_bounded() {
    let mut check = check(ReleaseAfter::Deadline, 0);
    for number in 0..140_000 {
        check.take_frame(at(0), &fixed(DatagramKind::Data, number), b"", VIA);
    }
    assert!(check.pending.len() <= 131_072);
    assert_eq!(cause(&mut check), Some((0, BreakCause::Unsigned)));
    let mut check = self::check(ReleaseAfter::Deadline, 0);
    let mut chain = chain(1);
    for batch in 0..1_100u64 {
        let first = batch * 65;
        (first..first + 64)
            .for_each(|number| chain.add(at(0), &fixed(DatagramKind::Data, number), b""));
        let body = chain.sign_batch(first + 64);
        check.take_signature(at(0), first + 64, &body, VIA);
        assert!(check.waiting.len() <= 64);
    }
    for _ in 0..100 {
        check.check(at(0), true);
    }
    assert!(!check.is_broken());
    assert_eq!((check.known.len(), check.anchors.len()), (65_536, 1_024));
    check.skip_to(u64::MAX);
    assert!(check.known.is_empty());
}

#[test]
fn a_receiver_without_a_place_misses_no_signature() {
    let mut check = check(ReleaseAfter::Deadline, 0);
    check.take_frame(at(0), &fixed(DatagramKind::Data, 0), b"real", VIA);
    check.suspend_checks();
    assert_eq!(check.poll_timeout(), None);
    check.check(at(60_000), true);
    assert!(!check.is_broken());
    check.begin(at(60_000), 0, RUN, 0);
    assert_eq!(check.poll_timeout(), Some(at(60_000) + PATIENCE));
    check.check(at(66_000), true);
    assert_eq!(cause(&mut check), Some((0, BreakCause::Unsigned)));
}

#[test]
fn another_run_begins_with_nothing() {
    let mut check = check(ReleaseAfter::Deadline, 0);
    check.take_frame(at(0), &fixed(DatagramKind::Data, 0), b"real", VIA);
    check.begin(at(0), 0, RUN, 50);
    assert!(!check.is_settled(), "a successor goes on with the run");
    check.begin(at(0), 0, RUN + 1, 3);
    assert!(check.is_settled());
    check.take_frame(at(0), &fixed(DatagramKind::Data, 2), b"before", VIA);
    assert_eq!(check.counts().unsigned, 1);
}
