//! The loss of names in a power loss.

use std::collections::BTreeSet;

use super::*;

/// Tries many power losses. Returns all sets of files that may survive.
fn outcomes(disk: &Disk) -> BTreeSet<String> {
    let mut random = Random::new(3);
    let tried = (0..400).map(|_| {
        let left = disk.fork();
        left.power_loss(&mut random);
        left.files().join(" ")
    });
    tried.collect()
}

fn set<const N: usize>(all: [&str; N]) -> BTreeSet<String> {
    all.map(str::to_owned).into()
}

/// A file with durable content and without a durable name.
fn make(backing: &dyn Backing, path: &str) {
    let file = backing.open_or_create(path).unwrap();
    file.write_at(0, path.as_bytes()).unwrap();
    file.sync().unwrap();
}

#[test]
fn a_sync_of_a_file_says_nothing_of_its_name() {
    let (disk, backing) = mounted();
    make(&*backing, "a");
    make(&*backing, "b");
    assert_eq!(disk.unsynced(), 2);
    assert_eq!(outcomes(&disk), set(["", "a", "b", "a b"]));
    backing.sync_dir("").unwrap();
    assert_eq!(outcomes(&disk), set(["a b"]));
}

#[test]
fn a_sync_of_a_directory_covers_its_names_and_its_own_and_no_others() {
    let (disk, backing) = mounted();
    make(&*backing, "d/e/f");
    make(&*backing, "d/other");
    make(&*backing, "top");
    backing.sync_dir("d/e").unwrap();
    assert_eq!(
        outcomes(&disk),
        set(["d/e/f", "d/e/f d/other", "d/e/f top", "d/e/f d/other top"])
    );
    backing.sync_dir("d").unwrap();
    assert_eq!(outcomes(&disk), set(["d/e/f d/other", "d/e/f d/other top"]));
    backing.sync_dir(".").unwrap();
    assert_eq!(outcomes(&disk), set(["d/e/f d/other top"]));
    assert_eq!(disk.unsynced(), 0);
}

/// A lost directory takes its entries with it.
#[test]
fn a_lost_directory_takes_its_files_along() {
    let (disk, backing) = mounted();
    make(&*backing, "d/f");
    let left = disk.after_power_loss(Survivors::Nothing, 1);
    assert!(!left.mount().exists("d").unwrap());
    assert_eq!(outcomes(&disk), set(["", "d/f"]));
}

#[test]
fn removed_names_may_come_back() {
    let (disk, backing) = mounted();
    make(&*backing, "a");
    make(&*backing, "b");
    backing.sync_dir("").unwrap();
    backing.remove("a").unwrap();
    backing.remove("b").unwrap();
    assert_eq!(outcomes(&disk), set(["", "a", "b", "a b"]));
    let back = disk.after_power_loss(Survivors::Nothing, 1);
    assert_eq!(bytes(&back, "a"), b"a");
    let files = back.mount().space().unwrap();
    assert_eq!(files.total_files - files.free_files, 2);
    backing.sync_dir("").unwrap();
    assert_eq!(outcomes(&disk), set([""]));
}

/// The new name leads to the old target or to the new one, and the file always has a name.
#[test]
fn a_rename_is_never_done_by_half() {
    let (disk, backing) = mounted();
    make(&*backing, "new");
    make(&*backing, "old");
    backing.sync_dir("").unwrap();
    backing.rename("new", "old").unwrap();
    let mut found = BTreeSet::new();
    for seed in 0..100 {
        let left = disk.after_power_loss(Survivors::Mixed { percent: 50 }, seed);
        let old = String::from_utf8(bytes(&left, "old")).unwrap();
        found.insert((left.files().join(" "), old));
    }
    let expected = [("new old", "old"), ("old", "new")];
    assert_eq!(
        found,
        expected.map(|(a, b)| (a.to_owned(), b.to_owned())).into()
    );
}

#[test]
fn a_rename_is_lost_with_the_making_of_the_file() {
    let (disk, backing) = mounted();
    make(&*backing, "draft");
    backing.rename("draft", "file").unwrap();
    assert_eq!(outcomes(&disk), set(["", "draft", "file"]));
}

/// For a rename from one directory to another, the sync of either directory makes the whole rename durable.
#[test]
fn a_rename_between_directories_is_saved_by_a_sync_of_one() {
    for synced in ["a", "b"] {
        let (disk, backing) = mounted();
        make(&*backing, "b/other");
        make(&*backing, "a/x");
        backing.rename("a/x", "b/y").unwrap();
        make(&*backing, "a/x");
        backing.sync_dir(synced).unwrap();
        let all = if synced == "a" {
            set(["a/x b/y", "a/x b/other b/y"])
        } else {
            set(["b/other b/y", "a/x b/other b/y"])
        };
        assert_eq!(outcomes(&disk), all, "{synced}");
    }
}

/// The sequence by which a store replaces its small files.
#[test]
fn a_file_that_was_replaced_has_old_or_new_bytes() {
    let (disk, backing) = mounted();
    lockstep_types::backing::replace(&*backing, "file", b"old").unwrap();
    let seen = std::sync::Arc::new(parking_lot::Mutex::new(BTreeSet::new()));
    let (into, from) = (Arc::clone(&seen), disk.clone());
    disk.observe(Some(Arc::new(move |_| {
        let mut random = Random::new(11);
        for _ in 0..40 {
            let left = from.fork();
            left.power_loss(&mut random);
            into.lock().insert(bytes(&left, "file"));
        }
        lockstep_lossy::disk::Verdict::Go
    })));
    lockstep_types::backing::replace(&*backing, "file", b"new").unwrap();
    assert_eq!(*seen.lock(), [b"old".to_vec(), b"new".to_vec()].into());
    for seed in 0..20 {
        let left = disk.after_power_loss(Survivors::Nothing, seed);
        assert_eq!(bytes(&left, "file"), b"new");
    }
}

/// A file that is made, removed and made again under one name is never mixed up with the first file.
#[test]
fn a_name_that_is_used_again_is_that_of_one_file_or_the_other() {
    let (disk, backing) = mounted();
    make(&*backing, "f");
    backing.remove("f").unwrap();
    let file = backing.open_or_create("f").unwrap();
    file.write_at(0, b"again").unwrap();
    file.sync().unwrap();
    let mut found = BTreeSet::new();
    for seed in 0..100 {
        found.insert(
            disk.after_power_loss(Survivors::Mixed { percent: 50 }, seed)
                .read_all("f"),
        );
    }
    let expected = [None, Some(b"f".to_vec()), Some(b"again".to_vec())];
    assert_eq!(found, expected.into());
}

#[test]
fn a_directory_is_removed_only_when_nothing_is_in_it() {
    let (disk, backing) = mounted();
    make(&*backing, "d/e/f");
    for kept in ["d", "d/e", "d/e/f", "none", "d/none"] {
        assert!(!backing.remove_empty_dir(kept).unwrap(), "{kept}");
    }
    assert_eq!(disk.directories(), ["d", "d/e"]);
    backing.remove("d/e/f").unwrap();
    assert!(backing.remove_empty_dir("d/e").unwrap());
    assert_eq!(disk.directories(), ["d"]);
    make(&*backing, "d/e/g");
    assert_eq!(disk.files(), ["d/e/g"]);
}

/// Tries many power losses. Returns all sets of directories that may survive.
fn directories_left(disk: &Disk) -> BTreeSet<String> {
    let mut random = Random::new(4);
    let tried = (0..400).map(|_| {
        let left = disk.fork();
        left.power_loss(&mut random);
        left.directories().join(" ")
    });
    tried.collect()
}

#[test]
fn a_removed_directory_may_come_back_until_the_one_above_is_synced() {
    let (disk, backing) = mounted();
    make(&*backing, "d/e/f");
    backing.sync_dir("d/e").unwrap();
    backing.remove("d/e/f").unwrap();
    backing.remove_empty_dir("d/e").unwrap();
    assert_eq!(directories_left(&disk), set(["d", "d d/e"]));
    // With its entry, or without.
    assert_eq!(outcomes(&disk), set(["", "d/e/f"]));
    let synced = disk.fork();
    synced.mount().sync_dir("d").unwrap();
    assert_eq!(directories_left(&synced), set(["d"]));
    // The sync of a removed directory makes the removal durable.
    backing.sync_dir("d/e").unwrap();
    assert_eq!(directories_left(&disk), set(["d"]));
}

#[test]
fn what_is_in_a_directory_made_anew_is_kept_by_a_sync_of_it() {
    let (disk, backing) = mounted();
    make(&*backing, "d/f");
    backing.sync_dir("d").unwrap();
    backing.remove("d/f").unwrap();
    backing.remove_empty_dir("d").unwrap();
    make(&*backing, "d/g");
    assert_eq!(outcomes(&disk), set(["", "d/f", "d/f d/g", "d/g"]));
    backing.sync_dir("d").unwrap();
    assert_eq!(outcomes(&disk), set(["d/g"]));
}
