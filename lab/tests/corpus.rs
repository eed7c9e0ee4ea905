//! Replays the corpora of the fuzz targets of all crates on stable Rust.

use evenfall_clock_machine::fuzzing as clock;
use evenfall_collectives_machine::fuzzing as collectives;
use evenfall_consensus_machine::fuzzing as consensus;
use evenfall_feed_formats::fuzzing as formats;
use evenfall_feed_service::fuzzing as feed;
use evenfall_files_flow::fuzzing as flow;
use evenfall_keys_machine::fuzzing as keys;
use evenfall_multicast_machine::fuzzing as multicast;
use evenfall_multicast_service::fuzzing as runs;
use evenfall_placement_machine::fuzzing as survey;
use evenfall_placement_planner::fuzzing as planner;
use evenfall_placement_survey::fuzzing as experiments;
use evenfall_port::fuzzing as port;
use evenfall_query_burst::fuzzing as burst;
use evenfall_store_engine::fuzzing as store;

#[path = "../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_corpus_file_passes_its_target() {
    replay::corpora(&[
        ("agent_call", experiments::agent_call),
        ("chrony", port::chrony),
        ("clock_machine", clock::machine),
        ("clock_wire", clock::wire),
        ("consensus_datagrams", consensus::datagrams),
        ("consensus_logs", consensus::logs),
        ("delay_rules", port::delay_rules),
        ("delays", planner::delays),
        ("experiment", experiments::experiment),
        ("fairness_csv", evenfall_multicast_report::fuzzing::fairness_csv),
        ("feed", formats::feed),
        ("itch", formats::itch),
        ("keys_calls", keys::calls),
        ("mold", formats::mold),
        ("multicast_machines", multicast::machines),
        ("multicast_wire", |data| {
            multicast::wire(data);
            evenfall_multicast_sessions::fuzzing::wire(data);
        }),
        ("openflow", flow::openflow),
        ("qaplib", planner::qaplib),
        ("questions", burst::take_questions),
        ("requests", feed::requests),
        ("run_json", runs::run_json),
        ("runlog", runs::runlog),
        ("settings", runs::settings),
        ("shuffle_bundles", collectives::bundles),
        ("shuffle_datagrams", collectives::datagrams),
        ("store_seal", store::store_seal),
        ("store_table", store::store_table),
        ("store_wire", store::store_wire),
        ("survey_agent", survey::survey_agent),
        ("survey_wire", survey::survey_wire),
    ]);
}
