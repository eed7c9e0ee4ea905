use super::*;

/// A space with calls made by a user at a time that counts up.
#[derive(Default)]
struct Made {
    space: Space,
    log: Vec<Record>,
    at_ms: u64,
}

impl Made {
    fn call(&mut self, call: Call) -> Result<(), Refusal> {
        self.at_ms += 1;
        for record in self.space.decide(&call, "ann", self.at_ms, &[DiskId(1)])? {
            self.log.push(record.clone());
            self.space.apply(record);
        }
        Ok(())
    }

    fn mkdirs(&mut self, path: &str) -> Result<(), Refusal> {
        self.call(Call::Mkdirs { path: path.into(), mode: 0o755 })
    }

    fn create(&mut self, path: &str, overwrite: bool) -> Result<(), Refusal> {
        self.call(Call::Create { path: path.into(), mode: 0o644, replication: 3, overwrite })
    }

    fn rename(&mut self, from: &str, to: &str, overwrite: bool) -> Result<(), Refusal> {
        self.call(Call::Rename { from: from.into(), to: to.into(), overwrite })
    }

    fn delete(&mut self, path: &str, recursive: bool) -> Result<(), Refusal> {
        self.call(Call::Delete { path: path.into(), recursive })
    }

    fn has(&self, path: &str) -> bool {
        self.space.find(path).is_ok()
    }
}

fn made() -> Made {
    let mut made = Made::default();
    made.mkdirs("/a/b/c").expect("a new path");
    made.create("/a/f", false).expect("a new file");
    made.create("/d/g", false).expect("a new file with its directory");
    made
}

#[test]
fn a_state_is_the_same_out_of_its_log_and_out_of_its_checkpoint() {
    let mut made = made();
    made.rename("/a", "/z", false).expect("a free name");
    made.delete("/d/g", false).expect("a file");
    made.create("/z/f", true).expect("a file that may be replaced");
    let owner = Some("bob".into());
    made.call(Call::SetOwner { path: "/z".into(), owner, group: None }).expect("a directory");
    let of = |records: &[Record]| {
        let mut space = Space::default();
        for record in records {
            let text = serde_json::to_vec(record).expect("plain values");
            space.apply(serde_json::from_slice(&text).expect("our own record"));
        }
        space
    };
    assert_eq!(of(&made.log), made.space);
    assert_eq!(of(&made.space.records()), made.space);
    let paths: Vec<String> = made.space.inodes().keys().map(|id| made.space.path(*id)).collect();
    assert!(paths.contains(&"/z/b/c".to_owned()), "{paths:?}");
}

#[test]
fn renames_follow_the_rules_of_hdfs() {
    let mut made = made();
    assert!(matches!(made.rename("/none", "/x", false), Err(Refusal::NotFound(_))));
    assert!(matches!(made.rename("/a/f", "/x/y", false), Err(Refusal::NotFound(_))));
    assert!(matches!(made.rename("/a", "/a/b/x", false), Err(Refusal::Invalid(_))));
    assert!(matches!(made.rename("/a/f", "/d/g", false), Err(Refusal::Exists(_))));
    assert!(matches!(made.rename("/", "/x", false), Err(Refusal::Invalid(_))));
    made.rename("/a/f", "/d", false).expect("a directory takes the file");
    assert!(made.has("/d/f") && !made.has("/a/f"));
    made.rename("/d/f", "/d/g", true).expect("a file may be replaced");
    assert!(made.has("/d/g") && !made.has("/d/f"));
    assert!(matches!(made.rename("/d/g", "/a", true), Err(Refusal::IsDirectory(_))));
    assert!(matches!(made.rename("/d", "/a", true), Err(Refusal::NotEmpty(_))));
    made.rename("/d/g", "/d/g", false).expect("nothing to do");
}

#[test]
fn deletions_follow_the_rules_of_hdfs() {
    let mut made = made();
    assert!(matches!(made.delete("/a", false), Err(Refusal::NotEmpty(_))));
    assert!(matches!(made.delete("/", true), Err(Refusal::Invalid(_))));
    assert!(matches!(made.delete("/none", true), Err(Refusal::NotFound(_))));
    assert!(matches!(made.delete("/a/f/x", true), Err(Refusal::NotDirectory(_))));
    made.delete("/a", true).expect("a directory with entries");
    assert!(!made.has("/a/b/c") && made.has("/d/g"));
    assert_eq!(made.space.inodes().len(), 3, "the root, /d and /d/g");
}

#[test]
fn wrong_paths_are_refused_by_name() {
    let long = format!("/{}", "x".repeat(300));
    let deep = "/x".repeat(1_001);
    let huge = format!("/{}", "x/".repeat(5_000));
    for path in ["", "a", "/a/../b", "/a/./b", "/a\0b", "/a:b", &long, &deep, &huge] {
        assert!(matches!(names(path), Err(Refusal::Invalid(_))), "{path:?}");
    }
    assert_eq!(names("//a///b/"), Ok(vec!["a", "b"]));
}

#[test]
fn files_are_not_directories() {
    let mut made = made();
    assert!(matches!(made.mkdirs("/a/f"), Err(Refusal::Exists(_))));
    assert!(matches!(made.mkdirs("/a/f/x"), Err(Refusal::NotDirectory(_))));
    assert!(matches!(made.create("/a/f/x", true), Err(Refusal::NotDirectory(_))));
    assert!(matches!(made.create("/a/b", true), Err(Refusal::IsDirectory(_))));
    assert!(matches!(made.create("/a/f", false), Err(Refusal::Exists(_))));
    made.mkdirs("/a/b").expect("a directory that is there already");
}
