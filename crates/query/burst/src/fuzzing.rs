//! The check that the fuzz target and the replay of its corpus call. It takes any bytes, and panics
//! when a promise breaks.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenfall_collectives_machine::group::GroupSettings;
use evenfall_core::{Arrival, StampedBy, Timestamp};

use crate::desk::made::{MadeFeed, play_rows};
use crate::desk::recent::{RecentConfig, RecentRows};
use crate::desk::{DeskAsk, DeskQuestion, DeskWorkerPlan, TimedQuestion};
use crate::standing::wire::{
    AskBody, QUESTION_HEADER_BYTES, QuestionHead, QuestionHeader, QuestionKind, decode_reason,
};
use crate::standing::{BurstAsker, BurstWorker, StandingConfig, WorkMachine};

/// Input is datagrams, each after two bytes of length. Encoding what was decoded gives the same
/// bytes. A worker, and an asker in the midst of a question, take any datagram.
pub fn take_questions(data: &[u8]) {
    let members: Vec<SocketAddr> =
        (1..=3).map(|port| ([127, 0, 0, 1], 7_000 + port).into()).collect();
    let (mut asker, mut worker) = (made_asker(&members), made_worker());
    let (mut at, mut number) = (0, 0u64);
    while let Some(head) = data.get(at..at + 2) {
        let length = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let datagram = Bytes::copy_from_slice(&data[at + 2..data.len().min(at + 2 + length)]);
        at += 2 + length;
        number += 1;
        check_encoding(&datagram);
        let now = Timestamp::from_nanos(1 + number * 1_000_000);
        let from = members[number as usize % members.len()];
        let arrival = Arrival::new(from, datagram, now, StampedBy::User);
        take_in(&mut worker, now, arrival.clone());
        take_in(&mut asker, now, arrival);
    }
}

fn made_asker(members: &[SocketAddr]) -> BurstAsker<DeskAsk> {
    let config = StandingConfig {
        group: GroupSettings::default(),
        workers_min: 1,
        answer_within: Duration::from_secs(1),
    };
    let own = SocketAddr::from(([127, 0, 0, 1], 7_000));
    let mut asker = BurstAsker::new(own, members.iter().copied(), config, 1);
    let of = DeskQuestion::Nbbo { markout: Duration::from_millis(100) };
    let ask = DeskAsk { of, window: Duration::from_secs(1), worst: 3, fills: [].into() };
    asker.ask(Timestamp::from_nanos(1), ask).expect("no other question is under way");
    asker
}

fn made_worker() -> BurstWorker<DeskWorkerPlan<RecentRows>> {
    let feed = MadeFeed {
        seed: 1,
        workers: 1,
        symbols: 3,
        rows: 20,
        accounts: 2,
        positions: 4,
        fills: 0,
        span_ns: 2_000_000_000,
        by_venue: true,
    };
    let (rows, mut recent) = (feed.rows_of(0), RecentRows::new(RecentConfig::default()));
    play_rows(&rows, &mut recent);
    BurstWorker::new(DeskWorkerPlan::new(recent, rows.positions), GroupSettings::default())
}

fn check_encoding(datagram: &Bytes) {
    let Ok(QuestionHead::Known(header)) = QuestionHeader::decode(datagram) else { return };
    assert_eq!(header.encode().as_slice(), &datagram[..QUESTION_HEADER_BYTES]);
    let payload = datagram.slice(QUESTION_HEADER_BYTES..);
    match header.kind {
        QuestionKind::Ask => {
            let Ok(body) = AskBody::decode(&payload) else { return };
            assert_eq!(body.encode(), payload);
            if let Ok(question) = TimedQuestion::decode(&body.question) {
                // The markout of a question that has none is not kept.
                assert_eq!(TimedQuestion::decode(&question.encode()), Ok(question));
            }
        }
        QuestionKind::Refused => {
            let why = decode_reason(&payload);
            assert!(!why.chars().any(char::is_control), "{why:?}");
        }
        QuestionKind::Call | QuestionKind::Here | QuestionKind::Taken => {}
    }
}

fn take_in<M: WorkMachine>(machine: &mut M, now: Timestamp, arrival: Arrival) {
    // A malformed datagram is refused, and nothing else happens.
    machine.handle(now, arrival).ok();
    machine.handle_timeout(now);
    while let Some(work) = machine.poll_work() {
        machine.handle_work(now, work.run());
    }
    while machine.poll_event().is_some() {}
    while machine.poll_transmit(now).is_some() {}
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("questions", take_questions)]);
    }
}
