//! A publisher in a process of its own: it has the number of each message, and outlives the root.

use std::ffi::c_char;
use std::ptr;

use evenfall::NodeId;
use evenfall::publisher::{Publisher, PublisherSettings};

use crate::guard::{free_handle, hand_out, look_behind, run_call};
use crate::shared::SharedHandle;
use crate::status::CallStatus;
use crate::text::{address, addresses, bytes_of, expect_size, key_in, node_key_in};

/// A publisher that outlives the root. Threads may publish at the same time.
pub struct PublisherHandle {
    publisher: SharedHandle<Publisher>,
}

/// How to start a publisher. Set all of it to zero first, then `size` and what is wanted.
#[repr(C)]
pub struct PublisherOptions {
    /// sizeof(evenfall_publisher_options)
    pub size: usize,
    /// The root and its standbys, as "HOST:PORT": one, three or five, the root first.
    pub roots: *const *const c_char,
    /// How many roots.
    pub root_count: usize,
    /// Where the publisher listens, as "HOST:PORT"; port 0 takes any free port.
    pub address: *const c_char,
    /// The number of the publisher, which the settings of the roots name with role "author".
    pub id: u32,
    /// The file with the shared key, or null. Without a key nothing leaves loopback.
    pub key: *const c_char,
    /// The file with the key of this publisher alone, or null, for a run with node keys.
    pub node_key: *const c_char,
}

/// Starts a publisher, and returns when the publisher listens. The program frees the publisher by
/// `evenfall_publisher_free`.
///
/// # Safety
/// The options and what they point to are as their fields say; `publisher` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_publisher_start(
    options: *const PublisherOptions,
    publisher: *mut *mut PublisherHandle,
) -> CallStatus {
    run_call(|| {
        // A program that frees what a failed call has left frees nothing.
        // SAFETY: the caller's promise.
        unsafe { hand_out(publisher, "publisher", ptr::null_mut()) }?;
        // SAFETY: the caller's promise.
        let options = unsafe { look_behind(options, "options") }?;
        expect_size::<PublisherOptions>(options.size, "evenfall_publisher_options")?;
        // SAFETY: the caller's promise, for each of the fields.
        let settings = unsafe {
            let roots = addresses(options.roots, options.root_count, "roots")?;
            let own = address(options.address, "address")?;
            let mut settings = PublisherSettings::new(&roots, own, NodeId(options.id));
            settings.key = key_in(options.key, "key")?;
            settings.node_key = node_key_in(options.node_key, "node_key")?;
            settings
        };
        let started = Publisher::of(&settings)?;
        let handle = Box::new(PublisherHandle { publisher: SharedHandle::new(started) });
        // SAFETY: the caller's promise.
        unsafe { hand_out(publisher, "publisher", Box::into_raw(handle)) }?;
        Ok(CallStatus::EvenfallOk)
    })
}

/// Messages of earlier processes under this id that are in the feed. Waits until a root takes
/// messages.
///
/// # Safety
/// The publisher is one that is not freed; `messages` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_publisher_before(
    publisher: *const PublisherHandle,
    messages: *mut u64,
) -> CallStatus {
    run_call(|| {
        // SAFETY: the caller's promise.
        let publisher = unsafe { look_behind(publisher, "publisher") }?.publisher.share()?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(messages, "messages", publisher.before()?) }?;
        Ok(CallStatus::EvenfallOk)
    })
}

/// Publishes a message of 65,000 bytes at most, and waits for its number in the feed, which it
/// keeps whichever root dies. The bytes are copied. `number` may be null: the call then returns as
/// soon as the message is queued, and waits only while the queue is full.
///
/// # Safety
/// The publisher is one that is not freed; `bytes` points to `length` bytes; `number` is null or
/// may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_publisher_publish(
    publisher: *const PublisherHandle,
    bytes: *const u8,
    length: usize,
    number: *mut u64,
) -> CallStatus {
    run_call(|| {
        // SAFETY: the caller's promise.
        let message = unsafe { bytes_of(bytes, length) }?;
        // SAFETY: the caller's promise.
        let publisher = unsafe { look_behind(publisher, "publisher") }?.publisher.share()?;
        let pending = publisher.send(message)?;
        if !number.is_null() {
            // SAFETY: the caller's promise.
            unsafe { hand_out(number, "number", pending.number()?) }?;
        }
        Ok(CallStatus::EvenfallOk)
    })
}

/// Tells the roots that no message follows, and returns when all messages have numbers.
///
/// # Safety
/// The publisher is one that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_publisher_finish(
    publisher: *const PublisherHandle,
) -> CallStatus {
    run_call(|| {
        // SAFETY: the caller's promise.
        unsafe { look_behind(publisher, "publisher") }?.publisher.take()?.finish()?;
        Ok(CallStatus::EvenfallOk)
    })
}

/// Frees the publisher. When it is not finished, messages without a number may be in the feed or
/// not. Null is no publisher, and nothing happens.
///
/// # Safety
/// The publisher is null, or one that no thread uses now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_publisher_free(publisher: *mut PublisherHandle) {
    // SAFETY: the caller's promise.
    unsafe { free_handle(publisher, |publisher| publisher.publisher.is_of_this_process()) }
}
