//! A shuffle alone on the network of bursts.

use evenfall_campaigns::sort::BurstScene;
use evenfall_campaigns::sort::alone::{run_shuffle, server_gbps};
use evenfall_campaigns::sort::scene::SimShuffle;

#[test]
fn every_shuffle_brings_every_message_and_no_link_is_outrun() {
    for shuffle in [SimShuffle::Grpf, SimShuffle::Entropy] {
        for (bytes, is_two_level) in [(0, false), (1, true), (9_000, false), (100_000, false)] {
            let scene = BurstScene { shuffle, ..BurstScene::new(11, bytes, 3) };
            let outcome = run_shuffle(&scene, is_two_level).expect("shuffled");
            assert!(server_gbps(&scene, &outcome) < 25.0, "{outcome:?}");
            assert!(outcome.completion_us > 2.5, "{outcome:?}");
        }
    }
}
