use super::*;

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[test]
fn objects_come_back_whole_in_part_and_in_order_of_names() {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::open(directory.path()).unwrap();
    folder.put("b", bytes("second")).unwrap();
    folder.put("a", bytes("first")).unwrap();
    folder.put("a", bytes("replaced")).unwrap();
    assert_eq!(folder.get("a", 0, usize::MAX).unwrap(), Some(bytes("replaced")));
    assert_eq!(folder.get("a", 2, 3).unwrap(), Some(bytes("pla")));
    assert_eq!(folder.get("a", 6, 100).unwrap(), Some(bytes("ed")));
    assert_eq!(folder.get("a", 100, 3).unwrap(), Some(Bytes::new()));
    assert_eq!(folder.fetch("b", 1, 3)().unwrap(), Some(bytes("eco")));
    assert_eq!(folder.fetch("c", 0, 3)().unwrap(), None);
    assert_eq!(folder.list("").unwrap(), ["a", "b"]);
    assert_eq!(folder.list("b").unwrap(), ["b"]);
    folder.delete("a").unwrap();
    folder.delete("a").unwrap();
    assert_eq!(folder.list("").unwrap(), ["b"]);
}

#[test]
fn too_many_unfinished_writers_are_an_error_and_not_an_object() {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::open(directory.path()).unwrap();
    let mut writers: Vec<_> = (0..STAGED_MAX).map(|_| folder.staged("a").unwrap()).collect();
    let error = folder.put_new("a", bytes("whole")).unwrap_err().to_string();
    assert!(error.contains("100 writers of this object have not ended"), "{error}");
    assert_eq!(folder.get("a", 0, usize::MAX).unwrap(), None);
    // The writer of `name#8` dies.
    writers.swap_remove(7);
    assert_eq!(folder.put_new("a", bytes("whole")).unwrap(), PutOutcome::Created);
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_first_write_of_a_process_removes_what_dead_writers_left_of_any_object() {
    let directory = tempfile::tempdir().unwrap();
    for left in ["a#1", "b#2", "c#3"] {
        std::fs::write(directory.path().join(left), "hal").unwrap();
    }
    let living = Folder::open(directory.path()).unwrap();
    let (_file, staged) = living.staged("c").unwrap();
    assert!(staged.ends_with("c#1"), "{staged:?}");
    // A process that only reads removes no staged file.
    let folder = Folder::open(directory.path()).unwrap();
    assert_eq!(folder.list("").unwrap(), Vec::<String>::new());
    assert_eq!(names(directory.path()), ["a#1", "b#2", "c#1", "c#3"]);
    folder.put("d", bytes("whole")).unwrap();
    assert_eq!(names(directory.path()), ["c#1", "d"]);
}

#[test]
fn a_writer_whose_file_was_taken_for_a_dead_one_begins_another() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a#1");
    let created = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    // Another process looks between the creation of the file and its lock.
    assert!(remove_dead(&path));
    assert!(!is_held(&created, &path).unwrap());
    // The name may belong to another writer by then.
    let (other, again) = Folder::open(directory.path()).unwrap().staged("a").unwrap();
    assert_eq!(again, path);
    assert!(!is_held(&created, &path).unwrap());
    assert!(!remove_dead(&path));
    drop(other);
    assert!(remove_dead(&path));
}

#[test]
fn what_a_crash_left_half_written_is_no_object_and_in_nobodys_way() {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::open(directory.path()).unwrap();
    std::fs::write(directory.path().join("a#1"), "hal").unwrap();
    assert_eq!(folder.list("").unwrap(), Vec::<String>::new());
    assert_eq!(folder.put_new("a", bytes("whole")).unwrap(), PutOutcome::Created);
    assert_eq!(folder.put_new("a", bytes("late")).unwrap(), PutOutcome::Exists);
    assert_eq!(folder.get("a", 0, usize::MAX).unwrap(), Some(bytes("whole")));
    assert_eq!(names(directory.path()), ["a"]);
}

#[test]
fn a_directory_that_was_lost_is_named_and_not_made_again() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("objects");
    let folder = Folder::open(&path).unwrap();
    folder.put("a", bytes("first")).unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    let is_lost = |error| matches!(error, StorageError::NoBucket { .. });
    assert!(is_lost(folder.put("a", bytes("again")).unwrap_err()));
    assert!(is_lost(folder.put_new("a", bytes("again")).unwrap_err()));
    assert!(is_lost(folder.swap("a", &bytes("first"), bytes("again")).unwrap_err()));
    assert!(is_lost(folder.get("a", 0, 5).unwrap_err()));
    assert!(is_lost(folder.fetch("a", 0, 5)().unwrap_err()));
    assert!(is_lost(folder.delete("a").unwrap_err()));
    assert!(is_lost(folder.list("").unwrap_err()));
    assert!(!path.exists());
}
