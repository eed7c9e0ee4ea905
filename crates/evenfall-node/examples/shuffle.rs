//! Four local processes, each with something for each other one. Run it: the first starts the rest.

use std::net::SocketAddr;

use bytes::Bytes;
use evenfall_node::group::{Seat, SeatOptions};
use evenfall_shuffle::group::Settings;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rank: usize = std::env::args().nth(1).map_or(Ok(0), |rank| rank.parse())?;
    let address = |rank| SocketAddr::from(([127, 0, 0, 1], 7_450 + rank as u16));
    let program = std::env::current_exe()?;
    let others = (1..if rank == 0 { 4 } else { 1 })
        .map(|rank| std::process::Command::new(&program).arg(rank.to_string()).spawn());
    let others = others.collect::<Result<Vec<_>, _>>()?;
    let seat = Seat::bind(address(rank), SeatOptions::default())?;
    let mut member = seat.join(rank, (0..4).map(address).collect(), Settings::default())?;
    let to = |to| Bytes::from(format!("from {rank} to {to}"));
    println!("{rank} got {:?}", member.shuffle((0..4).map(to).collect())?);
    member.leave();
    others.into_iter().try_for_each(|mut other| other.wait().map(drop))?;
    Ok(())
}
