//! The fuzz corpora, replayed on stable: what once was interesting stays harmless.

use evenfall_shuffle::fuzzing;
use std::path::Path;

type Target = fn(&[u8]);

#[test]
fn every_corpus_file_passes_its_target() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let targets: [(&str, Target); 2] =
        [("shuffle_bundles", fuzzing::bundles), ("shuffle_datagrams", fuzzing::datagrams)];
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
