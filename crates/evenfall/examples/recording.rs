//! Lists, reads and follows recordings: `recording PLACE [NAME]`, such as `recording
//! tcp://127.0.0.1:7410 feed`. PLACE is a store's directory or the address of a server.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use evenfall::recording::{RecordingFollower, Recordings, csv};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let recordings = Recordings::open(&args.next().ok_or("usage: recording PLACE [NAME]")?)?;
    for recording in recordings.catalog()?.recordings() {
        println!("{}: {} streams", recording.name, recording.streams().len());
    }
    let Some(name) = args.next() else { return Ok(()) };
    let (recording, mut out) = (recordings.recording(&name)?, std::io::stdout());
    recording.read::<Box<dyn std::error::Error>>(&recording.rows(), None, &mut |row| {
        csv(&row, &mut out)?;
        Ok(ControlFlow::Continue(()))
    })?;
    let mut follower = RecordingFollower::beginning_with(&recording, 0)?;
    while recordings.grows() {
        follower.read_new::<Box<dyn std::error::Error>>(&mut |row| Ok(csv(&row, &mut out)?))?;
        follower.wait_new(Instant::now() + Duration::from_secs(1))?;
    }
    Ok(())
}
