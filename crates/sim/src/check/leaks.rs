//! Nothing leaks: each operation releases its locks, and unneeded files are removed from the disk.
//!
//! At any moment, every lock belongs to an operation under way. A node is at rest if it is in sync,
//! no call is open, and it has had time to settle. A node at rest has no locks. It has no inodes
//! without a name, because no client has one open. Its disk has only the files of docs/on-disk.md,
//! the content of existing inodes, the directories of that content, and what snapshots keep. A stop may leave a draft
//! (`*.new`). No draft is left at rest, because the next start writes the file again.

use std::collections::BTreeSet;

use super::dump::Dump;
use super::violation::Violation;
use crate::world::Side;
use lockstep_fs::paths::{block_sums_owner, content_owner, is_body, is_given_up_mark, is_pack};

const INVARIANT: &str = "leaks";

/// The files of a usable store in use, besides content.
const FILES: [&str; 20] = [
    "contact",
    "format.json",
    "log/intent.0",
    "log/intent.1",
    "namespace.redb",
    "reserve",
    "role.json",
    "sums/era",
    "tables/barrier",
    "tables/trace",
    "tables/count",
    "tables/delta",
    "tables/marks.0",
    "tables/marks.1",
    "tables/paw",
    "tables/rest.0",
    "tables/rest.1",
    "tables/saw",
    "tables/sums",
    "tables/times",
];

/// The releasable resources that a node has at rest.
#[derive(Clone, Copy, Debug)]
pub struct RestingNode<'a> {
    /// The node.
    pub node: Side,
    /// All files on its disk.
    pub files: &'a [String],
    /// All directories on its disk.
    pub directories: &'a [String],
    /// All inodes.
    pub inodes: &'a Dump,
    /// Number of inodes without a name.
    pub orphans: usize,
    /// Number of locks that are held or waited for.
    pub locks: usize,
    /// Maximum number of these locks: the locks of operations that wait forever.
    pub locks_max: usize,
}

/// Judges the resources of a node at rest.
pub fn check(resting: &RestingNode<'_>) -> Result<(), Violation> {
    let unknown: Vec<_> = resting
        .files
        .iter()
        .filter(|path| !is_known(path, resting.inodes))
        .collect();
    let empty = empty_directories(resting.directories, resting.files);
    let leaks = [
        (resting.orphans > 0).then(|| format!("{} inodes without a name", resting.orphans)),
        (resting.locks > resting.locks_max).then(|| format!("{} locks", resting.locks)),
        (!unknown.is_empty()).then(|| format!("files without an owner: {unknown:?}")),
        (!empty.is_empty()).then(|| format!("directories with nothing in them: {empty:?}")),
    ];
    let found: Vec<_> = leaks.into_iter().flatten().collect();
    if found.is_empty() {
        return Ok(());
    }
    let what = format!("{:?} still has at rest {}", resting.node, found.join(", "));
    Err(Violation::new(INVARIANT, what))
}

/// Returns the directories of content that hold no file.
pub fn empty_directories<'a>(directories: &'a [String], files: &[String]) -> Vec<&'a str> {
    let above = files.iter().filter_map(|path| path.rsplit_once('/'));
    let used: BTreeSet<&str> = above.map(|(directory, _)| directory).collect();
    let all = directories.iter().map(String::as_str);
    let of_content = all.filter(|path| path.starts_with("content/"));
    of_content.filter(|path| !used.contains(path)).collect()
}

/// Judges the locks of a node at any moment. `stray` is the number of locks that belong to no
/// operation under way.
pub fn check_locks(node: Side, stray: usize) -> Result<(), Violation> {
    if stray == 0 {
        return Ok(());
    }
    let what = format!("{node:?} has {stray} locks that belong to no operation under way");
    Err(Violation::new(INVARIANT, what))
}

fn is_known(path: &str, inodes: &Dump) -> bool {
    let is_of_an_inode = |ino| inodes.inodes.contains_key(&ino);
    let owner = content_owner(path).or_else(|| block_sums_owner(path));
    FILES.contains(&path)
        || path.starts_with("sums/slots.")
        || is_pack(path)
        || is_body(path)
        || is_given_up_mark(path)
        || owner.is_some_and(is_of_an_inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(
        files: &[&str],
        directories: &[&str],
        orphans: usize,
        locks: usize,
    ) -> Result<(), String> {
        let owned = |paths: &[&str]| paths.iter().map(ToString::to_string).collect::<Vec<_>>();
        let resting = RestingNode {
            node: Side::B,
            files: &owned(files),
            directories: &owned(directories),
            inodes: &Dump::default(),
            orphans,
            locks,
            locks_max: 1,
        };
        check(&resting).map_err(|violation| violation.to_string())
    }

    #[test]
    fn a_store_without_leaks_is_accepted() {
        assert_eq!(checked(&FILES, &["content", "log", "tables"], 0, 1), Ok(()));
    }

    #[test]
    fn each_leak_is_named() {
        let files = ["role.json", "role.json.new", "content/0/7"];
        let directories = ["content", "content/0", "content/1"];
        let violation = checked(&files, &directories, 2, 3).unwrap_err();
        assert_eq!(
            violation,
            "leaks: B still has at rest 2 inodes without a name, 3 locks, files without an \
             owner: [\"role.json.new\", \"content/0/7\"], directories with nothing in them: \
             [\"content/1\"]"
        );
        assert!(check_locks(Side::A, 0).is_ok());
        assert!(check_locks(Side::A, 1).is_err());
    }
}
