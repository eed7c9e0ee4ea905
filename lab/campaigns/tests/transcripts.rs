//! Transcripts of scenarios as golden files. A changed transcript fails a test, and
//! `EVENFALL_UPDATE=1` writes the files anew.

use std::path::PathBuf;

use evenfall_campaigns::multicast::narrate::{STORIES, tell};

#[test]
fn small_scenarios_go_as_they_are_written() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let update = std::env::var_os("EVENFALL_UPDATE").is_some();
    for story in STORIES {
        let told = tell(story);
        let file = folder.join(format!("{story}.txt"));
        if update {
            std::fs::create_dir_all(&folder).expect("a folder for the stories");
            std::fs::write(&file, &told).expect("a story written");
        }
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        let line = written.lines().zip(told.lines()).position(|(a, b)| a != b);
        assert!(
            written == told,
            "{story}: differs at line {:?}; EVENFALL_UPDATE=1 accepts it",
            line.map_or_else(|| written.lines().count().min(told.lines().count()) + 1, |n| n + 1)
        );
        assert!(!told.contains("VIOLATION"), "{story}: {told}");
    }
}
