//! Once it is warm, a driver allocates nothing: neither to send nor to receive.

use bytes::Bytes;
use evenfall_core::{Destination, GroupId, Head, Install, TrafficClass, Transmit};
use evenfall_host::allocations::{CountingAllocator, count_of_thread};
use evenfall_port::udp::UdpDriver;
use evenfall_port::{Options, Port};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

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
            before = count_of_thread();
            datagrams = 0;
        }
        for number in 0..[1, 40, 7, 64][round % 4] {
            let to = if number % 5 == 4 { one } else { Destination::Group(GroupId(1)) };
            let body = body.slice(..if number % 7 == 6 { 100 } else { 500 });
            let head = Head::new(b"head");
            sender.send(0, Transmit::new(TrafficClass::Live, to, head, body)).unwrap();
        }
        assert!(sender.flush());
        for receiver in &mut receivers {
            while receiver.receive(&mut arrivals) > 0 {}
            datagrams += arrivals.len() as u64;
            arrivals.clear();
        }
    }
    let allocations = count_of_thread() - before;
    println!("{allocations} allocations for {datagrams} datagrams received");
    // The kernel may coalesce otherwise than it did before, so that a receiver needs its first
    // chunk or one buffer more.
    assert!(allocations <= 20, "{allocations} for {datagrams}");
    let before = count_of_thread();
    for _ in 0..64 {
        let (to, head) = (Destination::Group(GroupId(1)), Head::new(b"head"));
        sender.send(0, Transmit::new(TrafficClass::Live, to, head, body.clone())).unwrap();
    }
    sender.flush();
    assert_eq!(count_of_thread() - before, 0, "sending allocates");
}
