//! Replays corpora on stable: what once was interesting stays harmless. The unit tests of each
//! crate that has a module `fuzzing` take this file by its path.

use std::path::Path;

/// What a fuzz target does with its input.
pub type Target = fn(&[u8]);

/// Gives every file of each corpus to its target.
pub fn corpora(targets: &[(&str, Target)]) {
    // The crate that includes this file may lie at any depth.
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let corpora = above
        .find_map(|folder| Some(folder.join("fuzz/corpus")).filter(|corpora| corpora.is_dir()))
        .expect("the corpora are in the repository");
    for (name, target) in targets {
        let folder = corpora.join(name);
        let files = std::fs::read_dir(&folder).expect("the corpus is in the repository");
        let mut count = 0;
        for file in files {
            let path = file.unwrap().path();
            println!("{}", path.display());
            target(&std::fs::read(path).unwrap());
            count += 1;
        }
        assert!(count > 0, "{} is empty", folder.display());
    }
}
