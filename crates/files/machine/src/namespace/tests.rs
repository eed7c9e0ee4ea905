use super::*;

/// A namespace with calls that a user makes at times that count up.
#[derive(Default)]
struct Made {
    namespace: Namespace,
    log: Vec<NamespaceChange>,
    at_ms: u64,
}

impl Made {
    fn call(&mut self, call: NamespaceCall) -> Result<(), FilesRefusal> {
        self.at_ms += 1;
        for record in
            self.namespace.decide(&call, &Caller::superuser("ann"), self.at_ms, &[DiskId(1)])?
        {
            self.log.push(record.clone());
            self.namespace.apply(record);
        }
        Ok(())
    }

    fn mkdirs(&mut self, path: &str) -> Result<(), FilesRefusal> {
        self.call(NamespaceCall::Mkdirs { path: path.into(), mode: 0o755 })
    }

    fn create(&mut self, path: &str, overwrite: bool) -> Result<(), FilesRefusal> {
        let (path, mode, replication) = (path.into(), 0o644, 3);
        let (writer, block_bytes) = (None, BLOCK_BYTES);
        self.call(NamespaceCall::Create { path, mode, replication, overwrite, writer, block_bytes })
    }

    fn rename(&mut self, from: &str, to: &str, overwrite: bool) -> Result<(), FilesRefusal> {
        let (from, to, is_exact) = (from.into(), to.into(), overwrite);
        self.call(NamespaceCall::Rename { from, to, overwrite, is_exact })
    }

    fn delete(&mut self, path: &str, recursive: bool) -> Result<(), FilesRefusal> {
        self.call(NamespaceCall::Delete { path: path.into(), recursive })
    }

    fn has(&self, path: &str) -> bool {
        self.namespace.find(path).is_ok()
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
    made.call(NamespaceCall::SetOwner { path: "/z".into(), owner, group: None })
        .expect("a directory");
    let of = |records: &[NamespaceChange]| {
        let mut namespace = Namespace::default();
        for record in records {
            let text = serde_json::to_vec(record).expect("plain values");
            namespace.apply(serde_json::from_slice(&text).expect("our own record"));
        }
        namespace
    };
    assert_eq!(of(&made.log), made.namespace);
    assert_eq!(of(&made.namespace.records()), made.namespace);
    let paths: Vec<String> =
        made.namespace.inodes().keys().map(|id| made.namespace.path(*id)).collect();
    assert!(paths.contains(&"/z/b/c".to_owned()), "{paths:?}");
}

#[test]
fn renames_follow_the_rules_of_hdfs() {
    let mut made = made();
    assert!(matches!(made.rename("/none", "/x", false), Err(FilesRefusal::NotFound(_))));
    assert!(matches!(made.rename("/a/f", "/x/y", false), Err(FilesRefusal::NotFound(_))));
    assert!(matches!(made.rename("/a", "/a/b/x", false), Err(FilesRefusal::Invalid(_))));
    assert!(matches!(made.rename("/a/f", "/d/g", false), Err(FilesRefusal::Exists(_))));
    assert!(matches!(made.rename("/", "/x", false), Err(FilesRefusal::Invalid(_))));
    made.rename("/a/f", "/d", false).expect("a directory takes the file");
    assert!(made.has("/d/f") && !made.has("/a/f"));
    made.rename("/d/f", "/d/g", true).expect("a file may be replaced");
    assert!(made.has("/d/g") && !made.has("/d/f"));
    assert!(matches!(made.rename("/d/g", "/a", true), Err(FilesRefusal::IsDirectory(_))));
    assert!(matches!(made.rename("/d", "/a", true), Err(FilesRefusal::NotEmpty(_))));
    made.rename("/d/g", "/d/g", false).expect("nothing to do");
    assert!(matches!(made.rename("/d", "/d", false), Err(FilesRefusal::Invalid(_))));
    let (from, to) = ("/d/g".into(), "/a".into());
    let exact = NamespaceCall::Rename { from, to, overwrite: false, is_exact: true };
    assert!(matches!(made.call(exact), Err(FilesRefusal::Exists(_))));
}

#[test]
fn deletions_follow_the_rules_of_hdfs() {
    let mut made = made();
    assert!(matches!(made.delete("/a", false), Err(FilesRefusal::NotEmpty(_))));
    assert!(matches!(made.delete("/", true), Err(FilesRefusal::Invalid(_))));
    assert!(matches!(made.delete("/none", true), Err(FilesRefusal::NotFound(_))));
    assert!(matches!(made.delete("/a/f/x", true), Err(FilesRefusal::NotDirectory(_))));
    made.delete("/a", true).expect("a directory with entries");
    assert!(!made.has("/a/b/c") && made.has("/d/g"));
    assert_eq!(made.namespace.inodes().len(), 3, "the root, /d and /d/g");
}

#[test]
fn wrong_paths_are_refused_by_name() {
    let long = format!("/{}", "x".repeat(300));
    let deep = "/x".repeat(1_001);
    let huge = format!("/{}", "x/".repeat(5_000));
    for path in ["", "a", "/a/../b", "/a/./b", "/a\0b", "/a:b", &long, &deep, &huge] {
        assert!(matches!(names(path), Err(FilesRefusal::Invalid(_))), "{path:?}");
    }
    assert_eq!(names("//a///b/"), Ok(vec!["a", "b"]));
}

#[test]
fn new_names_have_no_control_characters() {
    let made = made();
    for name in ["/a\nb", "/x\ty", "/\u{1b}[2J"] {
        let call = NamespaceCall::Mkdirs { path: name.into(), mode: 0o755 };
        let refused = made.namespace.decide(&call, &Caller::superuser("ann"), 1, &[]);
        assert!(matches!(refused, Err(FilesRefusal::Invalid(_))), "{name:?}");
        let (from, to) = ("/d/g".into(), name.into());
        let call = NamespaceCall::Rename { from, to, overwrite: false, is_exact: true };
        let refused = made.namespace.decide(&call, &Caller::superuser("ann"), 1, &[]);
        assert!(matches!(refused, Err(FilesRefusal::Invalid(_))), "{name:?}");
    }
}

#[test]
fn files_are_not_directories() {
    let mut made = made();
    assert!(matches!(made.mkdirs("/a/f"), Err(FilesRefusal::Exists(_))));
    assert!(matches!(made.mkdirs("/a/f/x"), Err(FilesRefusal::NotDirectory(_))));
    assert!(matches!(made.create("/a/f/x", true), Err(FilesRefusal::NotDirectory(_))));
    assert!(matches!(made.create("/a/b", true), Err(FilesRefusal::Exists(_))));
    assert!(matches!(made.create("/a/f", false), Err(FilesRefusal::Exists(_))));
    made.mkdirs("/a/b").expect("a directory that is there already");
}

#[test]
fn a_file_takes_the_place_of_another_one_unless_that_one_has_changed() {
    let mut made = made();
    made.create("/a/._new", false).expect("a new file");
    made.create("/a/source", false).expect("a new file");
    let owner = Some("bob".to_owned());
    made.call(NamespaceCall::SetOwner { path: "/a/f".into(), owner, group: None }).expect("a file");
    let id = |made: &Made, path: &str| made.namespace.find(path).expect("a file").0;
    let (old, new, source) = (id(&made, "/a/f"), id(&made, "/a/._new"), id(&made, "/a/source"));
    let call = |was: Vec<(InodeId, u64)>| NamespaceCall::Replace {
        path: "/a/f".into(),
        with: "/a/._new".into(),
        sources: vec!["/a/source".into()],
        was,
    };
    for was in [vec![(old, 1), (source, 0)], vec![(source, 0), (source, 0)]] {
        assert_eq!(made.call(call(was)), Err(FilesRefusal::Changed("/a/f".into())));
    }
    let changed = Err(FilesRefusal::Changed("/a/source".into()));
    assert_eq!(made.call(call(vec![(old, 0), (old, 0)])), changed);
    assert!(matches!(made.call(call(vec![(old, 0)])), Err(FilesRefusal::Invalid(_))));
    made.call(call(vec![(old, 0), (source, 0)])).expect("nothing has changed");
    let (id, inode) = made.namespace.find("/a/f").expect("it was replaced");
    assert_eq!((id, inode.owner.as_str()), (new, "bob"));
    assert!(!made.has("/a/._new") && !made.has("/a/source"));
    assert!(made.namespace.file(old).is_none() && made.namespace.file(source).is_none());
}

#[test]
fn several_changes_in_one_record_are_the_same_as_one_after_the_other() {
    let mut made = made();
    made.rename("/a/f", "/d/g", true).expect("a file may be replaced");
    let mut namespace = Namespace::default();
    let gone = namespace.apply(NamespaceChange::All { records: made.log.clone() });
    assert_eq!((namespace, gone.len()), (made.namespace, 1));
}
