//! Reports on their way up: what receivers measured and counted, merged by proxies.
//!
//! ```text
//!  tally (56) | p95 u32 | serial u32 | height u8
//!  n u8 | n x worst (16) | k u8 | k x bucket | e u8 | e x member
//!  r u8 | r x spread | m u16 | m x sample
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use evenfall_core::{ClockError, Histogram, Malformed, NodeId, Reader};

use crate::wire::NUMBER_MAX;

/// Counters of a receiver since its start. Proxies add the counters of their receivers up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Receivers that this tally covers.
    pub receivers: u32,
    /// Receivers that have released everything up to the end.
    pub finished: u32,
    /// Messages released.
    pub released: u64,
    /// Released messages that came after their deadline.
    pub late: u64,
    /// Messages reported lost.
    pub lost: u64,
    /// Frames that came by repair.
    pub repaired: u64,
    /// Copies that were dropped because the frame had arrived before.
    pub duplicates: u64,
    /// Frames whose first copy did not come from the parent.
    pub hedge_wins: u64,
}

impl Tally {
    /// Adds another part of the tree.
    pub fn add(&mut self, other: &Self) {
        self.receivers = self.receivers.saturating_add(other.receivers);
        self.finished = self.finished.saturating_add(other.finished);
        self.released = self.released.saturating_add(other.released);
        self.late = self.late.saturating_add(other.late);
        self.lost = self.lost.saturating_add(other.lost);
        self.repaired = self.repaired.saturating_add(other.repaired);
        self.duplicates = self.duplicates.saturating_add(other.duplicates);
        self.hedge_wins = self.hedge_wins.saturating_add(other.hedge_wins);
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u32_le(self.receivers);
        out.put_u32_le(self.finished);
        for n in
            [self.released, self.late, self.lost, self.repaired, self.duplicates, self.hedge_wins]
        {
            out.put_u64_le(n);
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            receivers: r.u32()?,
            finished: r.u32()?,
            released: r.u64()?,
            late: r.u64()?,
            lost: r.u64()?,
            repaired: r.u64()?,
            duplicates: r.u64()?,
            hedge_wins: r.u64()?,
        })
    }
}

/// The delay of one sampled frame over the receivers that a report covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledDelay {
    /// Frame number.
    pub sequence: u64,
    /// Nanoseconds from the root's send time to the latest arrival at these receivers. The value
    /// saturates at 4.29 s.
    pub latest_ns: u32,
    /// Receivers that are known to have the frame.
    pub receivers: u32,
    /// Receivers that are known to lack the frame: all their reports came, and the frame was in
    /// none.
    pub missing: u32,
}

/// When one frame was released, over the receivers that a report covers. The root reads the
/// delivery window of the frame from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseSpread {
    /// Frame number.
    pub sequence: u64,
    /// Nanoseconds from the root's send time to the first release at these receivers.
    pub earliest_ns: u32,
    /// Nanoseconds from the root's send time to the last release. Both values saturate at 4.29 s.
    pub latest_ns: u32,
    /// Receivers that released the frame.
    pub receivers: u32,
}

impl ReleaseSpread {
    /// Adds the releases of another part of the tree.
    pub(crate) fn add(&mut self, other: &Self) {
        self.earliest_ns = self.earliest_ns.min(other.earliest_ns);
        self.latest_ns = self.latest_ns.max(other.latest_ns);
        self.receivers = self.receivers.saturating_add(other.receivers);
    }
}

/// What one node of the tree measured and counted, in its own words. Nodes above pass the figures
/// on as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberFigures {
    /// The node.
    pub id: NodeId,
    /// Milliseconds for which the figures have waited at nodes on their way.
    pub age_ms: u32,
    /// Error of the node's clock.
    pub clock: ClockError,
    /// Median delay of the last second from the root's send time to the first arrival, ns.
    pub delay_p50_ns: u32,
    /// 99th percentile of the same delay, ns.
    pub delay_p99_ns: u32,
    /// Messages that the node released.
    pub released: u64,
    /// Released messages that came after their deadline.
    pub late: u64,
    /// Messages that the node reported lost.
    pub lost: u64,
    /// Frames that came by repair.
    pub repaired: u64,
    /// Frames whose first copy did not come from the parent.
    pub hedge_wins: u64,
}

impl MemberFigures {
    /// The numbers on the wire, each a varint.
    fn parts(&self) -> [u64; 10] {
        let clock = match self.clock {
            ClockError::SameClock => 0,
            ClockError::Unknown => 1,
            ClockError::Disproved => 2,
            ClockError::Within(bound) => evenfall_core::time::nanos(bound).saturating_add(3),
        };
        let [id, age] = [self.id.0.into(), self.age_ms.into()];
        let [p50, p99] = [self.delay_p50_ns.into(), self.delay_p99_ns.into()];
        let Self { released, late, lost, repaired, hedge_wins, .. } = *self;
        [id, age, clock, p50, p99, released, late, lost, repaired, hedge_wins]
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (id, age_ms) = (NodeId(varint_u32(r)?), varint_u32(r)?);
        let clock = match varint(r)? {
            0 => ClockError::SameClock,
            1 => ClockError::Unknown,
            2 => ClockError::Disproved,
            more => ClockError::Within(core::time::Duration::from_nanos(more - 3)),
        };
        Ok(Self {
            id,
            age_ms,
            clock,
            delay_p50_ns: varint_u32(r)?,
            delay_p99_ns: varint_u32(r)?,
            released: varint(r)?,
            late: varint(r)?,
            lost: varint(r)?,
            repaired: varint(r)?,
            hedge_wins: varint(r)?,
        })
    }
}

/// A host or an edge with a large delay. An edge names both ends. A host names only itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Worst {
    /// Sending end of the edge, or the host itself.
    pub from: NodeId,
    /// Receiving end of the edge, or the host itself.
    pub to: NodeId,
    /// Mean delay in the interval in nanoseconds. For an edge the delay is on the wire, and for a
    /// host it is inside the host.
    pub mean_ns: u32,
    /// Longest delay in the interval, ns.
    pub max_ns: u32,
}

/// A report, which travels up the tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub tally: Tally,
    /// Maximum over receivers of their 95th percentile delay, ns.
    pub p95_ns: u32,
    /// Number of this report. The next report has the next number, unless samples were dropped or
    /// put off. Where a number is missing, a frame that is in no report may still have arrived.
    pub serial: u32,
    /// Levels of the tree below the sender; 0 for a receiver.
    pub height: u8,
    pub worst: Vec<Worst>,
    /// Delays since the last report.
    pub delays: Histogram,
    /// Figures of single nodes, in turn.
    pub members: Vec<MemberFigures>,
    /// In order of frame number.
    pub spreads: Vec<ReleaseSpread>,
    /// In order of frame number.
    pub samples: Vec<SampledDelay>,
}

/// Samples that one report may hold. No allowed size of datagram has room for more.
pub(crate) const SAMPLES_MAX: usize = 4_096;
/// Worst hosts and edges that one report names.
pub(crate) const WORST_MAX: usize = 8;
/// Nodes whose figures one report may have. Twenty reports a second then pass the figures of a
/// hundred nodes on in less than a second.
pub(crate) const MEMBERS_TOLD_MAX: usize = 8;
/// Frames whose releases one report may have: more than a second of them.
pub(crate) const SPREADS_MAX: usize = 128;
/// Bytes of an entry of [`Report::worst`].
const WORST_BYTES: usize = 16;
/// Bytes of a report whose lists are empty.
const REPORT_BYTES_MIN: usize = 71;

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Bytes that [`put_varint`] writes.
fn varint_bytes(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()).div_ceil(7).max(1) as usize
}

fn varint(r: &mut Reader<'_>) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = r.u8()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(r.malformed("a number of more than 64 bits"))
}

fn varint_u32(r: &mut Reader<'_>) -> Result<u32, Malformed> {
    u32::try_from(varint(r)?).map_err(|_| r.malformed("a number of more than 32 bits"))
}

/// The counts of a histogram in at most `bytes_max` bytes. When the counts do not fit, neighbouring
/// buckets are added up in the upper bucket, so that no delay looks shorter than it was.
fn fold(delays: &Histogram, bytes_max: usize) -> Vec<(u8, u64)> {
    const { assert!(evenfall_core::histogram::BUCKETS <= 1 << u8::BITS) };
    let mut folded: Vec<(u8, u64)> = Vec::new();
    for bits in 0..=u8::BITS {
        folded.clear();
        for (bucket, count) in delays.occupied() {
            let upper = (bucket | ((1 << bits) - 1)).min(evenfall_core::histogram::BUCKETS - 1);
            match folded.last_mut().filter(|(last, _)| usize::from(*last) == upper) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => folded.push((upper as u8, count)),
            }
        }
        let bytes: usize = folded.iter().map(|(_, count)| 1 + varint_bytes(*count)).sum();
        if bytes <= bytes_max {
            break;
        }
    }
    folded
}

/// Writes as many figures as fit, and returns their number.
fn put_members(out: &mut BytesMut, members: &[MemberFigures], bytes_max: usize) -> usize {
    let (count_at, mut told) = (out.len(), 0);
    out.put_u8(0);
    for parts in members.iter().take(MEMBERS_TOLD_MAX).map(MemberFigures::parts) {
        let bytes: usize = parts.into_iter().map(varint_bytes).sum();
        if out.len() - count_at - 1 + bytes > bytes_max {
            break;
        }
        parts.into_iter().for_each(|part| put_varint(out, part));
        told += 1;
    }
    out[count_at] = told as u8;
    told
}

/// Writes as many releases as fit, and returns their number.
fn put_spreads(out: &mut BytesMut, spreads: &[ReleaseSpread], bytes_max: usize) -> usize {
    let (count_at, mut told, mut after) = (out.len(), 0, 0);
    out.put_u8(0);
    for s in spreads.iter().take(SPREADS_MAX) {
        let span = s.latest_ns.saturating_sub(s.earliest_ns);
        let step = s.sequence.saturating_sub(after);
        let parts = [step, s.earliest_ns.into(), span.into(), s.receivers.into()];
        let bytes: usize = parts.into_iter().map(varint_bytes).sum();
        if out.len() - count_at - 1 + bytes > bytes_max {
            break;
        }
        parts.into_iter().for_each(|part| put_varint(out, part));
        (told, after) = (told + 1, s.sequence);
    }
    out[count_at] = told as u8;
    told
}

/// The frame number `step` after another.
fn sequence_after(r: &mut Reader<'_>, before: u64) -> Result<u64, Malformed> {
    match before.saturating_add(varint(r)?) {
        sequence if sequence <= NUMBER_MAX => Ok(sequence),
        _ => Err(r.malformed("a number that no stream reaches")),
    }
}

impl Report {
    /// Encodes the report in at most `bytes_max` bytes. The newest samples, when they do not fit,
    /// stay in the report, and the next report begins with them.
    ///
    /// A quarter of the room goes to the worst hosts, a third to the histogram, a fifth to figures
    /// of single nodes, an eighth to releases, and the rest to samples.
    pub(crate) fn encode(&mut self, bytes_max: usize) -> Bytes {
        self.samples.sort_unstable_by_key(|sample| sample.sequence);
        self.spreads.sort_unstable_by_key(|spread| spread.sequence);
        let mut out = BytesMut::with_capacity(bytes_max.min(2_048));
        self.tally.put(&mut out);
        out.put_u32_le(self.p95_ns);
        out.put_u32_le(self.serial);
        out.put_u8(self.height);
        let room = bytes_max.saturating_sub(REPORT_BYTES_MIN);
        let worst = self.worst.len().min(room / 4 / WORST_BYTES);
        out.put_u8(worst as u8);
        for w in &self.worst[..worst] {
            out.put_u32_le(w.from.0);
            out.put_u32_le(w.to.0);
            out.put_u32_le(w.mean_ns);
            out.put_u32_le(w.max_ns);
        }
        let delays = fold(&self.delays, room / 3);
        out.put_u8(delays.len() as u8);
        for (bucket, count) in delays {
            out.put_u8(bucket);
            put_varint(&mut out, count);
        }
        let told = put_members(&mut out, &self.members, room / 5);
        self.members.drain(..told);
        let told = put_spreads(&mut out, &self.spreads, room / 8);
        self.spreads.drain(..told);
        let told = self.put_samples(&mut out, bytes_max);
        self.samples.drain(..told);
        out.freeze()
    }

    /// The number of samples that had room.
    fn put_samples(&self, out: &mut BytesMut, bytes_max: usize) -> usize {
        let count_at = out.len();
        out.put_u16_le(0);
        let (mut told, mut after) = (0, 0);
        for s in self.samples.iter().take(SAMPLES_MAX) {
            let step = s.sequence - after;
            let parts = [step, s.latest_ns.into(), s.receivers.into(), s.missing.into()];
            let bytes: usize = parts.into_iter().map(varint_bytes).sum();
            if out.len() + bytes > bytes_max {
                break;
            }
            parts.into_iter().for_each(|part| put_varint(out, part));
            (told, after) = (told + 1, s.sequence);
        }
        out[count_at..count_at + 2].copy_from_slice(&(told as u16).to_le_bytes());
        told
    }

    fn read_spreads(&mut self, r: &mut Reader<'_>) -> Result<(), Malformed> {
        let spreads = usize::from(r.u8()?);
        if spreads > SPREADS_MAX {
            return Err(r.malformed("releases of more frames than allowed"));
        }
        let mut sequence = 0;
        for _ in 0..spreads {
            sequence = sequence_after(r, sequence)?;
            let (earliest_ns, span, receivers) = (varint_u32(r)?, varint_u32(r)?, varint_u32(r)?);
            let latest_ns = earliest_ns.saturating_add(span);
            self.spreads.push(ReleaseSpread { sequence, earliest_ns, latest_ns, receivers });
        }
        Ok(())
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(body);
        let mut report = Self {
            tally: Tally::read(&mut r)?,
            p95_ns: r.u32()?,
            serial: r.u32()?,
            height: r.u8()?,
            ..Self::default()
        };
        let worst = usize::from(r.u8()?);
        // Counts are the sender's word, and are judged before memory is taken for the entries.
        if worst > WORST_MAX {
            return Err(r.malformed("more worst hosts than allowed"));
        }
        for _ in 0..worst {
            report.worst.push(Worst {
                from: NodeId(r.u32()?),
                to: NodeId(r.u32()?),
                mean_ns: r.u32()?,
                max_ns: r.u32()?,
            });
        }
        for _ in 0..r.u8()? {
            let (bucket, count) = (usize::from(r.u8()?), varint(&mut r)?);
            if bucket >= evenfall_core::histogram::BUCKETS {
                return Err(r.malformed("histogram bucket out of range"));
            }
            report.delays.add(bucket, count);
        }
        let members = usize::from(r.u8()?);
        if members > MEMBERS_TOLD_MAX {
            return Err(r.malformed("figures of more nodes than allowed"));
        }
        for _ in 0..members {
            report.members.push(MemberFigures::read(&mut r)?);
        }
        report.read_spreads(&mut r)?;
        let samples = usize::from(r.u16()?);
        if samples > SAMPLES_MAX {
            return Err(r.malformed("more samples than allowed"));
        }
        let mut sequence = 0_u64;
        for _ in 0..samples {
            sequence = sequence_after(&mut r, sequence)?;
            let (latest_ns, receivers) = (varint_u32(&mut r)?, varint_u32(&mut r)?);
            let missing = varint_u32(&mut r)?;
            report.samples.push(SampledDelay { sequence, latest_ns, receivers, missing });
        }
        r.finish()?;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    /// Room for any report of these tests.
    const ROOMY: usize = 1_368;

    /// A report that fills every bucket and the list of worst hosts, with these samples.
    fn full_report(samples: u64) -> Report {
        let mut report = Report::default();
        (0..evenfall_core::histogram::BUCKETS).for_each(|b| report.delays.add(b, 1 << 40));
        let worst = Worst { from: NodeId(1), to: NodeId(2), mean_ns: 3, max_ns: 4 };
        report.worst = vec![worst; WORST_MAX];
        let sample = |n| SampledDelay {
            sequence: (1 << 40) + n * 20,
            latest_ns: 300_000 + n as u32,
            receivers: 1_000,
            missing: 0,
        };
        report.samples = (0..samples).map(sample).collect();
        report.members = (1..=MEMBERS_TOLD_MAX as u32).map(figures).collect();
        report.spreads = (0..5).map(|n| spread((1 << 40) + n * 200)).collect();
        report
    }

    fn figures(id: u32) -> MemberFigures {
        MemberFigures {
            id: NodeId(id),
            age_ms: 250,
            clock: ClockError::Within(Duration::from_nanos(3_100)),
            delay_p50_ns: 120_000,
            delay_p99_ns: 190_000,
            released: 1 << 30,
            late: 41,
            lost: 0,
            repaired: 2,
            hedge_wins: 1 << 20,
        }
    }

    fn spread(sequence: u64) -> ReleaseSpread {
        ReleaseSpread { sequence, earliest_ns: 233_000, latest_ns: 234_800, receivers: 1_000 }
    }

    #[test]
    fn a_report_fits_its_datagram_and_tells_the_rest_in_the_next() {
        for bytes_max in [192, 1_368] {
            let mut report = full_report(500);
            let all = report.samples.clone();
            let mut told = Vec::new();
            while !report.samples.is_empty() {
                let before = report.samples.len();
                let bytes = report.encode(bytes_max);
                assert!(bytes.len() <= bytes_max, "{} of {bytes_max}", bytes.len());
                let back = Report::decode(&bytes).unwrap();
                assert_eq!(back.delays.total(), report.delays.total());
                assert!(back.delays.quantile(0.5) >= report.delays.quantile(0.5));
                told.extend(back.samples);
                assert!(report.samples.len() < before, "{bytes_max} bytes hold no sample");
            }
            assert_eq!(told, all);
        }
    }

    #[test]
    fn fifty_milliseconds_of_two_thousand_samples_a_second_fit_one_datagram() {
        let mut report = full_report(100);
        report.delays = Histogram::default();
        // A thousand receivers at 30,000 frames a second, over two octaves.
        (40..56).for_each(|bucket| report.delays.add(bucket, 100_000));
        report.encode(ROOMY);
        assert_eq!(report.samples, []);
    }

    #[test]
    fn a_report_survives_the_wire() {
        let mut report = Report { p95_ns: 4, ..Report::default() };
        report.tally.late = 7;
        report.samples.push(SampledDelay { sequence: 3, latest_ns: 99, receivers: 2, missing: 1 });
        report.delays.record(Duration::from_micros(80));
        let clocks = [ClockError::SameClock, ClockError::Unknown, ClockError::Disproved];
        report.members = clocks.map(|clock| MemberFigures { clock, ..figures(7) }).to_vec();
        report.members.push(figures(8));
        report.spreads = vec![spread(3), spread(9)];
        let Report { samples, members, spreads, .. } = report.clone();
        let back = Report::decode(&report.encode(ROOMY)).unwrap();
        assert_eq!((back.tally, back.samples), (report.tally, samples));
        assert_eq!((back.members, back.spreads), (members, spreads));
        assert_eq!(back.delays, report.delays);
    }

    #[test]
    fn truncated_bodies_are_malformed() {
        let mut report = Report::default();
        report.samples.push(SampledDelay { sequence: 3, latest_ns: 99, receivers: 2, missing: 1 });
        report.delays.record(Duration::from_micros(80));
        (report.members, report.spreads) = (vec![figures(8)], vec![spread(3)]);
        let bytes = report.encode(ROOMY);
        for len in 0..bytes.len() {
            assert!(Report::decode(&bytes[..len]).is_err(), "{len}");
        }
    }
}
