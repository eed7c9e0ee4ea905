//! A shuffle alone (Figure 2.8): every server sends each other server a message of one length.

use std::sync::Arc;

use bytes::Bytes;
use evenfall_collectives_machine::group::{Collective, CollectiveOutcome};
use evenfall_query_burst::burst::{Actions, BurstProgram, WorkResult};

use super::scene::{BurstOutcome, BurstScene};

/// One rank of the shuffle.
struct LoneShuffle {
    ranks: Arc<[u16]>,
    message: Bytes,
    is_two_level: bool,
}

impl BurstProgram for LoneShuffle {
    type Output = u64;

    const STEPS: u32 = 1;

    fn begin(&mut self, out: &mut Actions<u64>) {
        out.begin_phase("shuffle");
        let messages = vec![self.message.clone(); self.ranks.len()];
        let call = match self.is_two_level {
            true => Collective::TwoLevelShuffle { messages },
            false => Collective::Shuffle { messages },
        };
        out.call(0, self.ranks.clone(), call);
    }

    fn here(
        &mut self,
        _: u32,
        outcome: CollectiveOutcome,
        out: &mut Actions<u64>,
    ) -> Result<(), u16> {
        out.end_phase("shuffle");
        let CollectiveOutcome::All(parts) = outcome else { return Ok(()) };
        match parts.iter().position(|part| part.len() != self.message.len()) {
            Some(wrong) => Err(wrong as u16),
            None => {
                out.finish(parts.len() as u64);
                Ok(())
            }
        }
    }

    fn worked(&mut self, _: u32, _: WorkResult, _: &mut Actions<u64>) -> Result<(), u16> {
        Ok(())
    }
}

/// Shuffles once. The records of the scene are the bytes of a message.
///
/// # Errors
/// When a server fails.
pub fn run_shuffle(scene: &BurstScene, is_two_level: bool) -> Result<BurstOutcome, String> {
    let ranks: Arc<[u16]> = (0..scene.servers as u16).collect();
    let message = Bytes::from(vec![7; scene.records]);
    let program = |_| LoneShuffle { ranks: ranks.clone(), message: message.clone(), is_two_level };
    Ok(scene.play(program, |&parts| parts)?.1)
}

/// What a server sends to others in a second, in 10^9 bits.
pub fn server_gbps(scene: &BurstScene, outcome: &BurstOutcome) -> f64 {
    let bytes = (scene.servers - 1) * scene.records;
    bytes as f64 * 8.0 / 1e3 / outcome.completion_us
}
