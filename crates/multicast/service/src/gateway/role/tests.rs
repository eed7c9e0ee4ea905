use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::*;

/// Writes a key of one repeated digit, readable by these users.
fn write_key(directory: &Path, name: &str, digit: &str, mode: u32) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, digit.repeat(64)).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    path
}

fn read(keys: Vec<PathBuf>, of_run: Option<&SharedKey>) -> Result<Vec<SharedKey>, String> {
    let gateway = GatewayNode {
        name: "gw".into(),
        participants: vec!["127.0.0.1:7500".parse().unwrap(); keys.len()],
        participant_keys: keys,
        rerequest: None,
        requesters: Vec::new(),
        interface: None,
    };
    read_participant_keys(&gateway, of_run).map_err(|error| error.to_string())
}

#[test]
fn each_participant_has_a_key_of_its_own_and_never_that_of_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name, digit, mode| write_key(directory.path(), name, digit, mode);
    let [a, b] = [write("a.key", "1", 0o600), write("b.key", "2", 0o600)];
    let run = SharedKey::new(1, [0x33; 32]);
    assert_eq!(read(vec![a.clone(), b.clone()], Some(&run)).unwrap().len(), 2);
    let refused = |keys: Vec<PathBuf>| read(keys, Some(&run)).unwrap_err();
    let begin = "node gw: participant_keys: ";
    let of_run = refused(vec![a.clone(), write("run.key", "3", 0o600)]);
    assert!(of_run.starts_with(begin) && of_run.contains("is the key of the run"), "{of_run}");
    let twice = refused(vec![a.clone(), b, write("c.key", "1", 0o600)]);
    assert!(twice.contains("a.key") && twice.contains("c.key hold one key"), "{twice}");
    let missing = refused(vec![directory.path().join("d.key")]);
    assert!(missing.starts_with(begin) && missing.contains("d.key"), "{missing}");
    let open = refused(vec![write("open.key", "4", 0o644)]);
    assert!(open.starts_with(begin) && open.contains("open.key"), "{open}");
    let short = directory.path().join("short.key");
    std::fs::write(&short, "12").unwrap();
    std::fs::set_permissions(&short, Permissions::from_mode(0o600)).unwrap();
    assert!(refused(vec![short]).contains("short.key"));
}
