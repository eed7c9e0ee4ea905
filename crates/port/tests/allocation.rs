//! Once it is warm, sending allocates nothing, and receiving allocates nothing per datagram.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use evenfall_core::{Class, Destination, GroupId, Head, Install, Transmit};
use evenfall_port::udp::UdpDriver;
use evenfall_port::{Options, Port};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are those of this function.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_warm_driver_does_not_allocate() {
    let loopback = ([127, 0, 0, 1], 0).into();
    let mut sender = UdpDriver::bind(loopback, Options::default()).unwrap();
    let mut receivers: Vec<_> =
        (0..10).map(|_| UdpDriver::bind(loopback, Options::default()).unwrap()).collect();
    let members = receivers.iter().map(Port::local_addr).collect();
    sender.install(0, &Install::Group(GroupId(1), members)).unwrap();
    let one = Destination::One(receivers[3].local_addr());
    let body = Bytes::from_static(&[1; 500]);
    let mut arrivals = Vec::new();
    let (mut before, mut datagrams) = (0, 0);
    for round in 0..400 {
        if round == 200 {
            before = ALLOCATIONS.load(Ordering::Relaxed);
            datagrams = 0;
        }
        for number in 0..[1, 40, 7, 64][round % 4] {
            let to = if number % 5 == 4 { one } else { Destination::Group(GroupId(1)) };
            let body = body.slice(..if number % 7 == 6 { 100 } else { 500 });
            let head = Head::new(b"head");
            sender.send(0, Transmit::new(Class::Live, to, head, body)).unwrap();
        }
        assert!(sender.flush());
        for receiver in &mut receivers {
            while receiver.receive(&mut arrivals) > 0 {}
            datagrams += arrivals.len() as u64;
            arrivals.clear();
        }
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    println!("{allocations} allocations for {datagrams} datagrams received");
    // The allocations are owners of handed-over buffers and shares of fresh chunks, one for many
    // datagrams.
    assert!(allocations * 20 < datagrams, "{allocations} for {datagrams}");
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..64 {
        let (to, head) = (Destination::Group(GroupId(1)), Head::new(b"head"));
        sender.send(0, Transmit::new(Class::Live, to, head, body.clone())).unwrap();
    }
    sender.flush();
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "sending allocates");
}
