//! Nothing leaks: whoever is done with a lock gives it back, and what nobody needs any more goes from
//! the disk.
//!
//! Every lock belongs to an operation under way, at any moment. At rest (in sync, no call open, time
//! given to settle) there are no locks, no inodes without a name, as nobody has one open, and on the
//! disk the files of docs/on-disk.md, the content of inodes that there are, and nothing else. A draft
//! (`*.new`) that a stop has left is gone by then: the next start writes its file anew.

use super::dump::Dump;
use super::violation::Violation;
use crate::world::Side;
use lockstep_fs::files::content_owner;

const INVARIANT: &str = "leaks";

/// The files of a store that is in use and in order, besides content.
const FILES: [&str; 8] = [
    "format.json",
    "log/intent.0",
    "log/intent.1",
    "namespace.redb",
    "role.json",
    "tables/paw",
    "tables/saw",
    "tables/times",
];

/// What a node has at rest of that which goes when it is not needed any more.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// Which node.
    pub node: Side,
    /// All files on its disk.
    pub files: &'a [String],
    /// All inodes.
    pub inodes: &'a Dump,
    /// How many inodes have no name.
    pub orphans: usize,
    /// How many locks are held or waited for.
    pub locks: usize,
    /// How many of these may be: those of operations that wait for ever.
    pub locks_max: usize,
}

/// Judges what a node has at rest.
pub fn check(kept: &Kept<'_>) -> Result<(), Violation> {
    let unknown: Vec<_> = kept
        .files
        .iter()
        .filter(|path| !is_known(path, kept.inodes))
        .collect();
    let leaks = [
        (kept.orphans > 0).then(|| format!("{} inodes without a name", kept.orphans)),
        (kept.locks > kept.locks_max).then(|| format!("{} locks", kept.locks)),
        (!unknown.is_empty()).then(|| format!("files that nobody needs: {unknown:?}")),
    ];
    let found: Vec<_> = leaks.into_iter().flatten().collect();
    if found.is_empty() {
        return Ok(());
    }
    let what = format!("{:?} still has at rest {}", kept.node, found.join(", "));
    Err(Violation::new(INVARIANT, what))
}

/// Judges the locks of a node at any moment: `stray` belong to nothing under way.
pub fn check_locks(node: Side, stray: usize) -> Result<(), Violation> {
    if stray == 0 {
        return Ok(());
    }
    let what = format!("{node:?} has {stray} locks that belong to no operation under way");
    Err(Violation::new(INVARIANT, what))
}

fn is_known(path: &str, inodes: &Dump) -> bool {
    let is_of_an_inode = |ino| inodes.inodes.contains_key(&ino);
    FILES.contains(&path) || content_owner(path).is_some_and(is_of_an_inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(files: &[&str], orphans: usize, locks: usize) -> Result<(), String> {
        let files: Vec<_> = files.iter().map(ToString::to_string).collect();
        let kept = Kept {
            node: Side::Secondary,
            files: &files,
            inodes: &Dump::default(),
            orphans,
            locks,
            locks_max: 1,
        };
        check(&kept).map_err(|violation| violation.to_string())
    }

    #[test]
    fn a_store_in_order_is_good() {
        assert_eq!(judged(&FILES, 0, 1), Ok(()));
    }

    #[test]
    fn what_is_left_is_named() {
        let told = judged(&["role.json", "role.json.new", "content/0/7"], 2, 3).unwrap_err();
        assert_eq!(
            told,
            "leaks: Secondary still has at rest 2 inodes without a name, 3 locks, files that nobody \
             needs: [\"role.json.new\", \"content/0/7\"]"
        );
        assert!(check_locks(Side::Primary, 0).is_ok());
        assert!(check_locks(Side::Primary, 1).is_err());
    }
}
