use bytes::Bytes;
use evenfall_core::{Format, SyncTime, Timestamp};

use super::*;
use crate::forging::{ToySigner, ToyVerifier};
use crate::signing::SigningChain;

const RUN: u64 = 0x77;

/// What a recording holds of a stream, in the order of numbers.
#[derive(Clone, Debug)]
enum Recorded {
    Frame(Archived),
    Signature(u64, u64, Vec<u8>),
}

impl Recorded {
    fn number(&self) -> u64 {
        match self {
            Self::Frame(frame) => frame.sequence,
            Self::Signature(number, ..) => *number,
        }
    }
}

fn frame(number: u64) -> Archived {
    let message = |at: u64| Bytes::from(format!("message {number}.{at}"));
    Archived {
        sequence: number,
        first_message: 2 * number,
        origin: SyncTime::from_nanos(1_000 * number),
        deadline: Some(SyncTime::from_nanos(1_000 * number + 500)),
        format: Format(3),
        messages: vec![message(0), message(1)],
        signature: None,
    }
}

fn add(chain: &mut SigningChain, frame: &Archived) {
    let mut body = BytesMut::new();
    frame.messages.iter().for_each(|message| put_message(&mut body, message));
    let fixed = OriginHeader {
        count: 2,
        run_id: RUN,
        first_message: frame.first_message,
        origin: frame.origin,
        deadline: frame.deadline,
        format: frame.format,
        ..OriginHeader::control(DatagramKind::Data, 0, 5, frame.sequence)
    };
    chain.add(Timestamp::ZERO, &fixed, &body);
}

/// Frames with a signature behind every fourth. Another root leads from the twentieth number on.
fn recording() -> Vec<Recorded> {
    let hasher = || FrameHasher::new(0, RUN);
    let mut chain = SigningChain::new(Arc::new(ToySigner(1)), hasher(), 1_300);
    let mut recorded = Vec::new();
    for number in 0..40 {
        if number == 20 {
            let last = chain.last;
            chain = SigningChain::new(Arc::new(ToySigner(2)), hasher(), 1_300);
            chain = chain.succeed(hasher(), last);
        }
        recorded.push(if number % 5 == 4 {
            Recorded::Signature(number, RUN, chain.sign_batch(number).to_vec())
        } else {
            let frame = frame(number);
            add(&mut chain, &frame);
            Recorded::Frame(frame)
        });
    }
    recorded
}

/// The audit by the public keys of these signers.
fn audit_by(signers: &[u8], recorded: &[Recorded]) -> Result<AuditCounts, AuditBreak> {
    let mut audit = ChainAudit::new(0, Arc::new(ToyVerifier(signers.to_vec())));
    for (at, item) in recorded.iter().enumerate() {
        match item {
            Recorded::Frame(frame) => {
                let run = recorded[at..].iter().find_map(|later| match later {
                    Recorded::Signature(_, run, _) => Some(*run),
                    Recorded::Frame(_) => None,
                });
                audit.take_frame(frame, run)?;
            }
            Recorded::Signature(number, run, body) => {
                audit.take_signature(*number, *run, body)?;
            }
        }
    }
    Ok(audit.finish())
}

fn audit(recorded: &[Recorded]) -> Result<AuditCounts, AuditBreak> {
    audit_by(&[1, 2], recorded)
}

fn broken(number: u64, cause: AuditCause) -> Result<AuditCounts, AuditBreak> {
    Err(AuditBreak { number, cause })
}

fn without(numbers: &[u64]) -> Vec<Recorded> {
    recording().into_iter().filter(|item| !numbers.contains(&item.number())).collect()
}

#[test]
fn a_whole_recording_is_signed_from_its_first_frame_to_its_last() {
    let counts = audit(&recording()).unwrap();
    let wanted = AuditCounts {
        signed: 32,
        signed_messages: 64,
        missing_before: 0,
        unsigned_before: 0,
        unsigned_behind: 0,
        signatures: 8,
    };
    assert_eq!(counts, wanted);
}

#[test]
fn each_changed_field_of_a_frame_is_named() {
    let changes: [fn(&mut Archived); 7] = [
        |frame| frame.messages[1] = Bytes::from_static(b"message 7_1"),
        |frame| drop(frame.messages.pop()),
        |frame| frame.messages.push(Bytes::new()),
        |frame| frame.first_message += 1,
        |frame| frame.origin = SyncTime::from_nanos(1),
        |frame| frame.deadline = None,
        |frame| frame.format = Format(4),
    ];
    for change in changes {
        let mut recorded = recording();
        let Recorded::Frame(frame) = &mut recorded[7] else { panic!("7 is a frame") };
        change(frame);
        assert_eq!(audit(&recorded), broken(7, AuditCause::OtherFrame));
    }
}

#[test]
fn a_frame_that_is_gone_is_named_and_so_is_one_that_was_added() {
    for number in [5, 7, 8, 38] {
        assert_eq!(audit(&without(&[number])), broken(number, AuditCause::MissingFrame));
    }
    // A frame under a number twice, and a frame under the number of a signature.
    let mut recorded = recording();
    recorded.insert(8, recorded[7].clone());
    assert_eq!(audit(&recorded), broken(7, AuditCause::OtherFrame));
    let mut recorded = recording();
    recorded[9] = Recorded::Frame(frame(9));
    assert_eq!(audit(&recorded), broken(5, AuditCause::Unsigned));
}

#[test]
fn a_signature_that_is_gone_or_cut_or_changed_is_named() {
    assert_eq!(audit(&without(&[9])), broken(5, AuditCause::Unsigned));
    assert_eq!(audit(&without(&[5, 6, 7, 8, 9])), broken(9, AuditCause::MissingSignature));
    let Recorded::Signature(_, _, whole) = recording()[9].clone() else { panic!("a signature") };
    for length in 0..whole.len() {
        let mut recorded = recording();
        recorded[9] = Recorded::Signature(9, RUN, whole[..length].to_vec());
        assert_eq!(audit(&recorded), broken(9, AuditCause::WrongSignature), "{length} bytes");
    }
    for at in 0..whole.len() {
        let mut body = whole.clone();
        body[at] ^= 1;
        let mut recorded = recording();
        recorded[9] = Recorded::Signature(9, RUN, body);
        assert_eq!(audit(&recorded), broken(9, AuditCause::WrongSignature), "byte {at}");
    }
}

#[test]
fn a_signature_of_another_root_run_or_number_is_named() {
    assert_eq!(audit_by(&[1], &recording()), broken(24, AuditCause::WrongSignature));
    let mut recorded = recording();
    let Recorded::Signature(_, _, body) = recorded[4].clone() else { panic!("a signature") };
    recorded[9] = Recorded::Signature(9, RUN, body);
    assert_eq!(audit(&recorded), broken(9, AuditCause::WrongSignature));
    let mut recorded = recording();
    recorded.iter_mut().for_each(|item| {
        if let Recorded::Signature(_, run, _) = item {
            *run += 1;
        }
    });
    assert_eq!(audit(&recorded), broken(4, AuditCause::WrongSignature));
}

#[test]
fn a_second_history_of_one_root_is_named() {
    // The root itself signs other frames behind the fourth number.
    let hasher = || FrameHasher::new(0, RUN);
    let mut chain = SigningChain::new(Arc::new(ToySigner(1)), hasher(), 1_300);
    chain = chain.succeed(hasher(), [9; CHAIN_BYTES]);
    let mut recorded = recording();
    for number in 5..9 {
        add(&mut chain, &frame(number));
    }
    recorded[9] = Recorded::Signature(9, RUN, chain.sign_batch(9).to_vec());
    assert_eq!(audit(&recorded), broken(9, AuditCause::OtherHistory));
    // The first signature of a run follows nothing.
    for number in 0..4 {
        add(&mut chain, &frame(number));
    }
    let mut recorded = recording();
    recorded[4] = Recorded::Signature(4, RUN, chain.sign_batch(4).to_vec());
    assert_eq!(audit(&recorded), broken(4, AuditCause::OtherHistory));
}

#[test]
fn frames_of_a_recording_that_began_late_or_ended_early_are_counted() {
    // From the middle of what a signature covers.
    let counts = audit(&recording()[7..]).unwrap();
    assert_eq!((counts.signed, counts.missing_before, counts.signatures), (26, 2, 7));
    // Frames 0 to 3 came from a node that keeps no signatures.
    let counts = audit(&without(&[4])).unwrap();
    assert_eq!((counts.signed, counts.unsigned_before), (28, 4));
    let counts = audit(&recording()[..38]).unwrap();
    assert_eq!((counts.signed, counts.unsigned_behind), (28, 3));
    let frames: Vec<Recorded> =
        recording().into_iter().filter(|item| matches!(item, Recorded::Frame(_))).collect();
    let counts = audit(&frames).unwrap();
    assert_eq!((counts.signed, counts.unsigned_behind, counts.signatures), (0, 32, 0));
}
