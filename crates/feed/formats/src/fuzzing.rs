//! Checks that the fuzz targets and the replay of their corpora call. Each check takes any bytes,
//! and panics when a promise breaks.

use crate::arbiter::{ArbiterEvent, ArbiterLimits, FAR_PACKETS, FeedSide};
use crate::books::levels::{LevelBooks, MarketMessage};
use crate::codec::CODECS;
use crate::columns::ColumnBuffers;
use crate::file::open;
use crate::itch::{Symbols, View};
use crate::mold::replay::{ReplayLimits, ReplayRing};
use crate::mold::{COUNT_MAX, MoldError, MoldPacket, MoldRequest, SessionId, Tracker};
use crate::source::MessageSource;
use bytes::Bytes;
use std::io::Cursor;

/// Reads a message. Encoding a decoded message gives the same bytes, and printing shows all its
/// fields.
pub fn itch(data: &[u8]) {
    let Ok(view) = View::decode(data) else { return };
    let mut again = Vec::new();
    view.to_owned().encode_into(&mut again);
    assert_eq!(again, data);
    assert_eq!(view.to_string().split(',').count(), 4 + view.kind().fields().len());
}

/// Reads datagrams of a session, each after a byte for the side and a byte for the length. Messages
/// come out in order, and no datagram moves the session further than the stated jump unless enough
/// datagrams agree.
pub fn mold(data: &[u8]) {
    let _ = MoldPacket::decode(data);
    if let Ok(request) = MoldRequest::decode(data) {
        assert_eq!(request.encode(), data);
    }
    let limits = ArbiterLimits {
        messages_max: 64,
        bytes_max: 4096,
        jump_max: 1_000,
        remembered_max: 64,
        is_recorded: false,
    };
    let mut tracker = Tracker::new(None, limits);
    let mut rest = data;
    let (mut last, mut refused) = (None, 0);
    while let Some((&[side, length], tail)) = rest.split_first_chunk::<2>() {
        let (datagram, tail) = tail.split_at(usize::from(length).min(tail.len()));
        rest = tail;
        let (session, known, before) = (tracker.session(), tracker.known_end(), tracker.counts());
        let side = if side & 1 == 0 { FeedSide::A } else { FeedSide::B };
        let taken = tracker.datagram(side, &Bytes::copy_from_slice(datagram));
        refused += u64::from(matches!(taken, Err(MoldError::Far(_))));
        let now = tracker.counts();
        let is_new = tracker.session() != session;
        let is_moved = now.jumps + now.restarts > before.jumps + before.restarts;
        if is_new || is_moved {
            last = None;
        } else {
            let moved = tracker.known_end().abs_diff(known);
            assert!(moved <= limits.jump_max + u64::from(COUNT_MAX), "by {moved}");
        }
        let moves = now.jumps + now.restarts;
        assert!(moves * u64::from(FAR_PACKETS - 1) <= refused, "{now:?}");
        while let Some(event) = tracker.poll() {
            if matches!(event, ArbiterEvent::Restart(_)) {
                last = None;
            }
            if let ArbiterEvent::Message { sequence, .. } = event {
                assert!(last < Some(sequence), "{last:?} then {sequence}");
                last = Some(sequence);
            }
        }
        let _ = (tracker.request(), tracker.is_ended());
    }
    tracker.abandon();
    tracker.leave();
}

/// Sends a request of any bytes to a sender that has 120 of 200 messages. The answer is one packet
/// of requested messages, or nothing.
pub fn mold_requests(data: &[u8]) {
    const PACKET_BYTES: usize = 1_400;
    const SESSION: SessionId = SessionId(*b"  evenfall");
    let limits = ReplayLimits { messages_max: 180, bytes_max: 1 << 20 };
    let mut ring = ReplayRing::new(SESSION, 1, limits);
    (0..60_u8).for_each(|n| ring.push(vec![n; usize::from(n)].into()));
    ring.skip_to(141);
    (0..60_u8).for_each(|n| ring.push(vec![n; usize::from(n) * 3].into()));
    let Ok(request) = MoldRequest::decode(data) else { return };
    let Ok(answer) = ring.answer(&request, PACKET_BYTES) else { return };
    let answer = answer.finish();
    let packet = MoldPacket::decode(&answer).expect("an answer is a packet");
    assert!(answer.len() <= PACKET_BYTES && packet.sequence == request.sequence);
    assert!((1..=request.count).contains(&packet.body.count()));
    assert!(packet.next_sequence() <= ring.next_sequence());
}

/// Reads the bytes as a message of every format, and as a file of any format. A message gives
/// events, other bytes give none. Indices count up, and an error repeats.
pub fn feed(data: &[u8]) {
    for codec in CODECS {
        let (mut events, mut symbols) = (0, Symbols::new());
        codec.events(data, &mut symbols, &mut |_| events += 1);
        let mut row = ColumnBuffers::new(codec.columns());
        codec.put_rows(data, &mut Symbols::new(), &mut row);
        let is_message = codec.type_name(data).is_some();
        assert_eq!(is_message, row.rows() > 0, "{}: a message gives a row", codec.word());
        if let Some(market) = codec.market_codec() {
            let mut books = LevelBooks::<()>::default();
            let message = MarketMessage { bytes: data, recorded_ns: i64::MAX };
            books.take_message(market, message, (), &mut |(), _| {});
            books.end_nanosecond(&mut |(), _| {});
        }
        assert_eq!(is_message, events > 0, "{}: a message gives an event", codec.word());
        assert!(is_message || !codec.is_packet(data), "{}: a packet is a message", codec.word());
        let _ = (codec.is_file(data), codec.packet_head(data), codec.shard_key(data));
    }
    let Ok(mut source) = open(Box::new(Cursor::new(data.to_vec())), "fuzz") else { return };
    let mut count = 0;
    let error = loop {
        match source.next_message() {
            Ok(Some(message)) => assert_eq!(message.index, count),
            Ok(None) => return,
            Err(error) => break error,
        }
        count += 1;
    };
    assert_eq!(error.index, count);
    assert_eq!(source.next_message(), Err(error));
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[
            ("feed", feed),
            ("itch", itch),
            ("mold", mold),
            ("requests", mold_requests),
        ]);
    }
}
