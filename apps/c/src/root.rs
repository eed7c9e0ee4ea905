//! The root of a run in the program: it sends what the program publishes.

use std::ffi::c_char;
use std::ptr;

use evenfall::NodeId;
use evenfall::embedded_root::{EmbeddedRoot, EmbeddedRootSettings};

use crate::guard::{free_handle, hand_out, look_behind, run_call};
use crate::shared::SharedHandle;
use crate::status::{CallStatus, Failure};
use crate::text::{address, array, bytes_of, expect_size, key_in, master_key_in};

/// The root of a run. Threads may publish at the same time.
pub struct RootHandle {
    root: SharedHandle<EmbeddedRoot>,
}

/// A receiver that the root waits for.
#[repr(C)]
pub struct ReceiverAddress {
    /// The number of the receiver.
    pub id: u32,
    /// Where it listens, as "HOST:PORT"; port 0 stands for any port.
    pub address: *const c_char,
}

/// How to start a root. Set all of it to zero first, then `size` and what is wanted.
#[repr(C)]
pub struct RootOptions {
    /// sizeof(evenfall_root_options)
    pub size: usize,
    /// Where the root listens, as "HOST:PORT".
    pub address: *const c_char,
    /// The number of the root.
    pub id: u32,
    /// Trees over which the keys of messages are spread; 0 stands for 1.
    pub trees: u32,
    /// The receivers that the root waits for before the first message leaves.
    pub receivers: *const ReceiverAddress,
    /// How many receivers.
    pub receiver_count: usize,
    /// The file with the shared key, or null. Without a key nothing leaves loopback.
    pub key: *const c_char,
    /// The file with the master key of the roots, or null, for a run with node keys.
    pub master_key: *const c_char,
}

/// Starts a root, and returns when the root listens. The program frees the root by
/// `evenfall_root_free`.
///
/// # Safety
/// The options and what they point to are as their fields say; `root` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_root_start(
    options: *const RootOptions,
    root: *mut *mut RootHandle,
) -> CallStatus {
    run_call(|| {
        // A program that frees what a failed call has left frees nothing.
        // SAFETY: the caller's promise.
        unsafe { hand_out(root, "root", ptr::null_mut()) }?;
        // SAFETY: the caller's promise.
        let options = unsafe { look_behind(options, "options") }?;
        expect_size::<RootOptions>(options.size, "evenfall_root_options")?;
        // SAFETY: the caller's promise.
        let own = unsafe { address(options.address, "address") }?;
        let mut settings = EmbeddedRootSettings::new(own, NodeId(options.id));
        // SAFETY: the caller's promise.
        for receiver in unsafe { array(options.receivers, options.receiver_count, "receivers") }? {
            // SAFETY: the caller's promise.
            let address = unsafe { address(receiver.address, "receivers") }?;
            settings.receivers.push((NodeId(receiver.id), address));
        }
        settings.trees = options.trees.max(1);
        // SAFETY: the caller's promise.
        settings.key = unsafe { key_in(options.key, "key") }?;
        let shared = settings.key.as_ref();
        // SAFETY: the caller's promise.
        settings.master_key = unsafe { master_key_in(options.master_key, "master_key", shared) }?;
        let started = EmbeddedRoot::of(&settings)?;
        let handle = Box::new(RootHandle { root: SharedHandle::new(started) });
        // SAFETY: the caller's promise.
        unsafe { hand_out(root, "root", Box::into_raw(handle)) }?;
        Ok(CallStatus::EvenfallOk)
    })
}

/// Publishes a message of 65,000 bytes at most, and waits while the queue is full. The bytes are
/// copied. Messages of one `key` keep their order.
///
/// # Safety
/// The root is one that is not freed; `bytes` points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_root_publish(
    root: *const RootHandle,
    bytes: *const u8,
    length: usize,
    key: u32,
) -> CallStatus {
    run_call(|| {
        // SAFETY: the caller's promise.
        let message = unsafe { bytes_of(bytes, length) }?;
        // SAFETY: the caller's promise.
        let root = unsafe { look_behind(root, "root") }?.root.share()?;
        root.publish(message, key).map_err(Failure::from)?;
        Ok(CallStatus::EvenfallOk)
    })
}

/// Ends the stream, and waits until every receiver has it. The root then takes no message more.
/// `messages` gets the number of messages that were sent; it may be null.
///
/// # Safety
/// The root is one that is not freed; `messages` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_root_finish(
    root: *const RootHandle,
    messages: *mut u64,
) -> CallStatus {
    run_call(|| {
        // SAFETY: the caller's promise.
        let root = unsafe { look_behind(root, "root") }?.root.take()?;
        let summary = root.finish()?;
        if !messages.is_null() {
            // SAFETY: the caller's promise.
            unsafe { hand_out(messages, "messages", summary.messages) }?;
        }
        Ok(CallStatus::EvenfallOk)
    })
}

/// Frees the root; ends the stream first when it is not finished. Null is no root, and nothing
/// happens.
///
/// # Safety
/// The root is null, or one that no thread uses now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn evenfall_root_free(root: *mut RootHandle) {
    // SAFETY: the caller's promise.
    unsafe { free_handle(root, |root| root.root.is_of_this_process()) }
}
