//! Namespaces and signals of the operating system.

use std::io::Read;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use evenfall_core::{Destination, GroupId, Head, Install, TrafficClass, Transmit};
use evenfall_host::clock::MonotonicClock;
use evenfall_host::interrupt;
use evenfall_host::lab::Lab;
use evenfall_port::udp::UdpDriver;
use evenfall_port::{Options, Port, Wake};

fn lab(hosts: usize) -> Option<Lab> {
    match Lab::new(hosts) {
        Ok(lab) => Some(lab),
        Err(error) if error.to_string().contains("need root") => {
            println!("skipped: not root");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn four_hosts_reach_each_other() {
    let Some(lab) = lab(4) else { return };
    let bind = |host: usize| {
        let at = SocketAddr::from((lab.address(host), 7000));
        lab.within(host, move || UdpDriver::bind(at, Options::default().keyed())).unwrap().unwrap()
    };
    let mut drivers: Vec<_> = (0..4).map(bind).collect();
    for from in 0..4_usize {
        let others: Vec<_> = (0..4).filter(|to| *to != from).collect();
        let members = others.iter().map(|to| (lab.address(*to), 7000).into()).collect();
        drivers[from].install(0, &Install::Group(GroupId(0), members)).unwrap();
        for number in 0..100_u8 {
            let ping = Transmit::new(
                TrafficClass::Live,
                Destination::Group(GroupId(0)),
                Head::new(&[from as u8, number]),
                Bytes::from_static(b"ping"),
            );
            drivers[from].send(0, ping).unwrap();
        }
        assert!(drivers[from].flush());
        assert_eq!(drivers[from].counters().failed, 0);
        for to in others {
            let mut arrivals = Vec::new();
            while arrivals.len() < 100 {
                let quiet = MonotonicClock::now() + Duration::from_secs(2);
                let count = drivers[to].receive(&mut arrivals);
                let nothing = count == 0 && drivers[to].wait(None, Some(quiet)) == Wake::Deadline;
                assert!(!nothing, "{from} to {to}: {} of 100 arrived", arrivals.len());
            }
            for (number, arrival) in arrivals.iter().enumerate() {
                assert_eq!(
                    arrival.datagram[..],
                    [from as u8, number as u8, b'p', b'i', b'n', b'g']
                );
                assert_eq!(arrival.from.ip(), lab.address(from));
            }
        }
    }
}

#[test]
fn segments_longer_than_the_link_carries_go_out_as_single_datagrams() {
    let Some(lab) = lab(2) else { return };
    let bind = |host: usize| {
        let at = SocketAddr::from((lab.address(host), 7000));
        lab.within(host, move || UdpDriver::bind(at, Options::default().keyed())).unwrap().unwrap()
    };
    let (mut sender, mut receiver) = (bind(0), bind(1));
    // A veth carries 1,500 bytes, less 28 of headers.
    for (bytes, refused) in [(4000, 1), (1473, 2), (1472, 2), (100, 2)] {
        let body = Bytes::from(vec![3; bytes]);
        for _ in 0..10 {
            let frame = Transmit::new(
                TrafficClass::Live,
                Destination::One(receiver.local_addr()),
                Head::new(b""),
                body.clone(),
            );
            sender.send(0, frame).unwrap();
        }
        assert!(sender.flush());
        assert_eq!(sender.counters().segmentation_refused, refused, "at {bytes} bytes");
        let mut arrivals = Vec::new();
        while arrivals.len() < 10 {
            let quiet = MonotonicClock::now() + Duration::from_secs(2);
            let count = receiver.receive(&mut arrivals);
            assert!(
                count > 0 || receiver.wait(None, Some(quiet)) != Wake::Deadline,
                "{bytes} bytes"
            );
        }
        assert!(arrivals.iter().all(|arrival| arrival.datagram == body));
    }
    assert_eq!(sender.segment_bytes_max(), 1472);
    assert_eq!(sender.counters().failed, 0);
}

#[test]
fn commands_run_inside_a_host() {
    let Some(lab) = lab(2) else { return };
    let mut command = Command::new("ip");
    command.args(["-brief", "addr", "show", "dev", "eth0"]);
    lab.inside(1, &mut command).unwrap();
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("10.77.0.2/16"), "{text}");
}

#[test]
fn forty_hosts_come_and_go_quickly() {
    let start = MonotonicClock::now();
    let Some(lab) = lab(40) else { return };
    let built = MonotonicClock::now().since(start);
    let name = lab.name(39);
    drop(lab);
    let whole = MonotonicClock::now().since(start);
    println!("40 hosts: built in {built:?}, gone after {whole:?}");
    assert!(whole < Duration::from_secs(20), "{whole:?}");
    assert!(!std::fs::exists(format!("/run/netns/{name}")).unwrap());
}

#[test]
fn leftovers_of_dead_processes_are_swept() {
    if lab(0).is_none() {
        return;
    }
    // A process number beyond the kernel's greatest.
    let name = "ef4194999-0-h0";
    assert!(Command::new("ip").args(["netns", "add", name]).status().unwrap().success());
    // Another test that makes a lab may have swept the namespace first.
    Lab::sweep_stale().unwrap();
    assert!(!std::fs::exists(format!("/run/netns/{name}")).unwrap());
}

/// The variable that tells `signalled_child` that it runs as a child process.
const CHILD: &str = "EVENFALL_TEST_SIGNALLED_CHILD";

/// Runs as a child process of the test below, so that the signal does not end the test runner.
#[test]
fn signalled_child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let loopback = "127.0.0.1:0".parse().unwrap();
    let mut driver = UdpDriver::bind(loopback, Options::default()).unwrap();
    interrupt::install().unwrap();
    // A dropped watch frees its slot for the next watch.
    for _ in 0..100 {
        drop(interrupt::watch(driver.waker()).unwrap());
    }
    let _signals = interrupt::watch(driver.waker()).unwrap();
    assert!(!interrupt::raised());
    eprintln!("ready");
    let start = MonotonicClock::now();
    assert_eq!(driver.wait(None, Some(start + Duration::from_secs(30))), Wake::Woken);
    assert!(interrupt::raised());
    assert!(MonotonicClock::now().since(start) < Duration::from_secs(20));
}

#[test]
fn a_signal_raises_the_flag_and_ends_the_wait() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "signalled_child"])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stderr.take().unwrap();
    let mut ready = [0; 5];
    output.read_exact(&mut ready).unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}
