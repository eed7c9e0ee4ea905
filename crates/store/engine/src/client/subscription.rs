//! Subscriptions of a client: what the server may push, and what it has pushed.
//!
//! The client grants a window of bytes per subscription, and grants the bytes of each batch again
//! when the caller takes the batch. A caller that takes nothing therefore stops the server, and the
//! batches that wait here are no more than the window.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::{Client, RemoteFile, broken};
use crate::StoreError;
use crate::protocol::{KnownEnd, StoreReply, StoreRequest, SubscriptionEnd, fits_wait, frame};
use crate::source::poll_ends;

/// Bytes of records that a subscription may have under way. A window holds the largest record, of
/// 65,535 bytes. Sixteen subscriptions have a mebibyte under way, which the socket takes while the
/// client writes appends and reads nothing.
pub const WINDOW_BYTES: u64 = 64 << 10;

/// A subscription of a [`Client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSubscription {
    /// Number of its request.
    request: u32,
}

/// Records that a server has pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedRecords {
    /// Number of the first record.
    pub first: u64,
    /// The records, one after the other.
    pub records: Bytes,
}

/// A subscription under way.
pub(super) struct PushQueue {
    record_bytes: u64,
    /// Number of the record that the server has to push next.
    next: u64,
    /// Bytes that the server may still push.
    credit: u64,
    /// Bytes that the caller has taken and that are not granted again yet.
    taken: u64,
    batches: VecDeque<PushedRecords>,
    /// Why nothing comes any more.
    ended: Option<StoreError>,
}

impl PushQueue {
    fn new(record_bytes: u64, first: u64) -> Self {
        let (batches, ended) = (VecDeque::new(), None);
        Self { record_bytes, next: first, credit: WINDOW_BYTES, taken: 0, batches, ended }
    }

    /// Takes a reply to the subscription. Returns whether it was the last.
    pub(super) fn receive(&mut self, reply: StoreReply<'_>) -> Result<bool, StoreError> {
        if self.ended.is_some() {
            return Err(broken("a reply behind the end of a subscription"));
        }
        match reply {
            StoreReply::Pushed { first, bytes } => {
                let len = bytes.len() as u64;
                if first != self.next || len == 0 || !len.is_multiple_of(self.record_bytes) {
                    let next = self.next;
                    return Err(broken(format!(
                        "{len} bytes from record {first} on were pushed in the place of record \
                         {next}"
                    )));
                }
                let credit = self.credit.checked_sub(len);
                self.credit = credit.ok_or_else(|| broken("more was pushed than was granted"))?;
                let next = self.next.checked_add(len / self.record_bytes);
                self.next = next.ok_or_else(|| broken("more records than numbers"))?;
                let records = Bytes::copy_from_slice(bytes);
                self.batches.push_back(PushedRecords { first, records });
                return Ok(false);
            }
            StoreReply::Ended { why, next, kept } => {
                if next != self.next {
                    let pushed = self.next;
                    return Err(broken(format!(
                        "a subscription ended before record {next} whose records were pushed up \
                         to record {pushed}"
                    )));
                }
                self.ended = Some(StoreError::SubscriptionEnded { why, next, kept });
            }
            StoreReply::Failed { is_retryable, what } => {
                self.ended = Some(StoreError::Remote { what: what.to_owned(), is_retryable });
            }
            _ => return Err(broken("a reply of another kind")),
        }
        Ok(true)
    }
}

/// Takes frames as the replies to a subscription, until one is refused. Checks that the batches for
/// the caller follow each other without a gap, and fit the window.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_pushes(mut data: &[u8]) {
    let mut queue = PushQueue::new(16, 0);
    while let Ok(Some((header, body))) = frame(data) {
        let received = StoreReply::decode(&header, body).map(|reply| queue.receive(reply));
        if !matches!(received, Ok(Ok(false))) {
            break;
        }
        data = &data[crate::protocol::HEADER_BYTES + body.len()..];
    }
    let mut next = 0;
    for batch in &queue.batches {
        assert_eq!(batch.first, next);
        next += batch.records.len() as u64 / 16;
    }
    assert!(next * 16 <= WINDOW_BYTES && next == queue.next);
}

impl Client {
    /// Subscribes to the records of a file from number `first` on, those that are appended later
    /// too. [`next_batch`](Self::next_batch) gives them in order, each once. A connection takes
    /// appends and other requests meanwhile. A server allows sixteen subscriptions per connection.
    ///
    /// # Errors
    /// [`StoreError::Remote`].
    pub fn subscribe_to(
        &mut self,
        file: &RemoteFile,
        first: u64,
    ) -> Result<FileSubscription, StoreError> {
        let record_bytes = u64::from(file.schema.record_bytes).max(1);
        let request = StoreRequest::Subscribe { file: file.number, first, credit: WINDOW_BYTES };
        let request = self.send(&request, 16)?;
        self.flush()?;
        let queue = PushQueue::new(record_bytes, first);
        self.pushed.insert(request, queue);
        self.subscribed += 1;
        Ok(FileSubscription { request })
    }

    /// The next records of a subscription; `None` when none come until the moment. A batch has at
    /// most [`WINDOW_BYTES`].
    ///
    /// # Errors
    /// [`StoreError::SubscriptionEnded`] once, after the last batch; and [`StoreError::Remote`],
    /// also for a subscription whose end was returned already. No batch comes after an error.
    pub fn next_batch(
        &mut self,
        subscription: FileSubscription,
        until: Instant,
    ) -> Result<Option<PushedRecords>, StoreError> {
        let number = subscription.request;
        loop {
            let queue = self.pushed.get_mut(&number).ok_or_else(already_ended)?;
            if let Some(batch) = queue.batches.pop_front() {
                queue.taken += batch.records.len() as u64;
                // A grant fails when the server has gone. What it has sent before is still to be
                // read, and may say why it has gone.
                let _ = self.grant(number);
                return Ok(Some(batch));
            }
            if let Some(ended) = queue.ended.take() {
                self.pushed.remove(&number);
                return Err(ended);
            }
            let flushed = self.flush();
            let is_there = frame(&self.input[self.came.clone()])?.is_some();
            if !is_there && !self.comes_until(until)? {
                return flushed.map(|()| None);
            }
            self.receive(None, &mut |_| None::<()>)?;
        }
    }

    /// Grants the bytes that were taken, once they are half of the window. Smaller grants would
    /// make the server read in smaller parts.
    fn grant(&mut self, number: u32) -> Result<(), StoreError> {
        let Some(queue) = self.pushed.get_mut(&number) else { return Ok(()) };
        if queue.taken < WINDOW_BYTES / 2 || queue.ended.is_some() {
            return Ok(());
        }
        let credit = std::mem::take(&mut queue.taken);
        queue.credit += credit;
        StoreRequest::Grant { credit }.encode(number, &mut self.out);
        self.flush()
    }

    /// Ends a subscription. Returns the number of the first record that the caller has not taken.
    /// Batches that wait for the caller are dropped.
    ///
    /// # Errors
    /// [`StoreError::SubscriptionEnded`] when the server has ended the subscription before; the
    /// error too states the first record that the caller has not taken. [`StoreError::Remote`].
    pub fn end_subscription(&mut self, subscription: FileSubscription) -> Result<u64, StoreError> {
        let number = subscription.request;
        self.pushed.get(&number).ok_or_else(already_ended)?;
        StoreRequest::Unsubscribe.encode(number, &mut self.out);
        let flushed = self.flush();
        loop {
            let queue = self.pushed.get_mut(&number).ok_or_else(already_ended)?;
            let Some(ended) = queue.ended.take() else {
                // The server may have ended the subscription before it went away.
                if flushed.is_err() && !self.comes_until(Instant::now())? {
                    return flushed.map(|()| 0);
                }
                self.receive(None, &mut |_| None::<()>)?;
                continue;
            };
            let untaken = queue.batches.front().map(|batch| batch.first);
            self.pushed.remove(&number);
            return match ended {
                StoreError::SubscriptionEnded { why, next, kept } => {
                    let next = untaken.unwrap_or(next);
                    match why {
                        SubscriptionEnd::Asked => Ok(next),
                        _ => Err(StoreError::SubscriptionEnded { why, next, kept }),
                    }
                }
                error => Err(error),
            };
        }
    }

    /// Waits until one of these files has more records than stated, or until the moment. Returns
    /// whether the caller should look: a file has more records, or the files are too many for one
    /// request, which the caller then looks at every tenth of a second.
    ///
    /// # Errors
    /// [`StoreError::Remote`], also for a file that is not there.
    pub fn wait_past(&mut self, ends: &[KnownEnd], until: Instant) -> Result<bool, StoreError> {
        if !fits_wait(ends) {
            return Ok(poll_ends(until));
        }
        let mut request = StoreRequest::Wait { time_ms: 0, ends: ends.to_vec() };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // The server must answer before it counts as silent. Parts of a millisecond count as a
            // whole one, so that the last wait is not a hundred requests that wait for nothing.
            let left_ms = left.min(self.patience / 2).as_nanos().div_ceil(1_000_000);
            if let StoreRequest::Wait { time_ms, .. } = &mut request {
                *time_ms = u32::try_from(left_ms).unwrap_or(u32::MAX);
            }
            let has_more = self.call(&request, |reply| match reply {
                StoreReply::Numbers { numbers } => Some(!numbers.is_empty()),
                _ => None,
            })?;
            if has_more || Instant::now() >= until {
                return Ok(has_more);
            }
        }
    }
}

/// The error for a subscription whose end its caller knows.
fn already_ended() -> StoreError {
    let what = "the subscription has ended before: subscribe again".to_owned();
    StoreError::Remote { what, is_retryable: false }
}

#[cfg(test)]
mod tests;
