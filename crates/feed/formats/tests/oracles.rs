//! Captures read by other people's libraries beside ours: `pcap-parser` for the files, `etherparse`
//! for the packets. Both libraries hold a block or a packet as a whole. Our reader takes a stream
//! in pieces and names the byte where a file breaks. The libraries are therefore judges here and
//! not parts.

use std::fs::File;
use std::io::Cursor;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice, VlanId};
use evenfall_feed_formats::pcap::PcapReader;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader};
use proptest::prelude::*;

type Datagram = (SocketAddr, SocketAddr, Vec<u8>);

/// The UDP datagram of an Ethernet frame, as etherparse has it.
fn judged(frame: &[u8]) -> Option<Datagram> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let (from, to): (IpAddr, IpAddr) = match packet.net? {
        NetSlice::Ipv4(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        NetSlice::Ipv6(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        _ => return None,
    };
    let Some(TransportSlice::Udp(udp)) = packet.transport else { return None };
    let (from, to) = ((from, udp.source_port()).into(), (to, udp.destination_port()).into());
    Some((from, to, udp.payload().to_vec()))
}

/// All datagrams of a file, by the libraries.
fn judged_file(path: &Path) -> Vec<Datagram> {
    let mut reader = create_reader(1 << 20, File::open(path).unwrap()).unwrap();
    let mut all = Vec::new();
    loop {
        let used = match reader.next() {
            Ok((used, block)) => {
                match block {
                    PcapBlockOwned::Legacy(packet) => all.extend(judged(packet.data)),
                    PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                        all.extend(judged(packet.packet_data()));
                    }
                    _ => {}
                }
                used
            }
            Err(PcapError::Eof) => return all,
            Err(PcapError::Incomplete(_)) => {
                reader.refill().unwrap();
                continue;
            }
            Err(error) => panic!("{error:?}"),
        };
        reader.consume(used);
    }
}

fn ours(reader: impl std::io::Read) -> Vec<Datagram> {
    let mut source = PcapReader::new(reader, "ours");
    core::iter::from_fn(|| source.next_datagram().unwrap())
        .map(|datagram| (datagram.source, datagram.destination, datagram.payload.to_vec()))
        .collect()
}

#[test]
fn captures_hold_what_other_libraries_find_in_them() {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data");
    let folder = std::env::var_os("EVENFALL_DATA").map_or_else(beside, PathBuf::from);
    for file in ["pcap/Cme.Mdp3.Sbe.v6.1.pcap", "pcap/Miax.Tom.Mach.v1.9.Example.pcap"] {
        let path = folder.join(file);
        if !path.exists() {
            println!("skipped: no data (set EVENFALL_DATA)");
            return;
        }
        let theirs = judged_file(&path);
        assert!(theirs.len() >= 10_000, "{file}: {}", theirs.len());
        assert!(theirs == ours(File::open(&path).unwrap()), "{file}");
    }
}

/// A classic capture of Ethernet frames.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend_from_slice(&u32::to_le_bytes(word));
    }
    for frame in frames {
        let length = u32::try_from(frame.len()).unwrap();
        for word in [0, 0, length, length] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(frame);
    }
    file
}

fn frame(tags: u8, v6: bool, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let link = PacketBuilder::ethernet2([1; 6], [2; 6]);
    let mut frame = Vec::new();
    let tag = |id| VlanId::try_new(id).unwrap();
    let (one, two) = ([10, 0, 0, 1], [239, 1, 1, 1]);
    macro_rules! write {
        ($link:expr) => {
            match v6 {
                false => $link.ipv4(one, two, 9).udp(ports.0, ports.1).write(&mut frame, payload),
                true => $link
                    .ipv6([7; 16], [0xff; 16], 9)
                    .udp(ports.0, ports.1)
                    .write(&mut frame, payload),
            }
        };
    }
    match tags {
        0 => write!(link),
        1 => write!(link.single_vlan(tag(5))),
        _ => write!(link.double_vlan(tag(5), tag(6))),
    }
    .unwrap();
    frame
}

proptest! {
    /// Frames of the shapes that feeds have: no tag, one or two, IPv4 and IPv6.
    #[test]
    fn frames_are_read_as_the_judge_reads_them(
        shapes in prop::collection::vec(
            (0u8..3, any::<bool>(), any::<(u16, u16)>(), prop::collection::vec(any::<u8>(), 0..90)),
            1..20,
        ),
    ) {
        let frames: Vec<Vec<u8>> =
            shapes.iter().map(|(tags, v6, ports, body)| frame(*tags, *v6, *ports, body)).collect();
        let theirs: Vec<Datagram> = frames.iter().filter_map(|frame| judged(frame)).collect();
        prop_assert_eq!(theirs.len(), frames.len());
        prop_assert_eq!(ours(Cursor::new(capture(&frames))), theirs);
    }
}
