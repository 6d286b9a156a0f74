//! Where the files of a store lie, by path below its directory.
//!
//! Only paths: nothing here touches the disk.

use lockstep_types::{Generation, Ino, Osn, SnapshotId};

/// Names the format and the datastore. A directory without this file holds no store.
pub const FORMAT_FILE: &str = "format.json";
/// The key-value store of the namespace.
pub const NAMESPACE_FILE: &str = "namespace.redb";
/// Says that a directory is being adopted, and which. With [`FORMAT_FILE`] beside it, the adoption is complete.
pub const ADOPTION_FILE: &str = "adoption.json";
/// The namespace of a directory that is being adopted. Becomes [`NAMESPACE_FILE`].
pub const ADOPTED_NAMES_FILE: &str = "adopted.redb";
/// Says that a seed is being imported, and which. While the file is there, the directory holds no store.
pub const IMPORT_FILE: &str = "import.json";
/// The directory of the intent log.
pub const LOG_DIR: &str = "log";
/// The directory of the tables.
pub const TABLES_DIR: &str = "tables";
/// The table of files with unflushed writes.
pub const TIMES_FILE: &str = "tables/times";
/// The table of the changes since both copies were equal.
pub const DELTA_FILE: &str = "tables/delta";
/// The blocks whose bytes change at this moment.
pub const CHANGING_FILE: &str = "tables/sums";
/// The directory of the sums of content.
pub const SUMS_DIR: &str = "sums";
/// The secret of the sums, and the era.
pub const ERA_FILE: &str = "sums/era";
/// The tables of the region marks of mirrored intervals, one for each column.
pub const MARK_FILES: [&str; 2] = ["tables/marks.0", "tables/marks.1"];
/// The names of the barriers that this node has reached.
pub const BARRIER_FILE: &str = "tables/barrier";
/// The places that a node which serves alone may have changed.
pub const TRACE_FILE: &str = "tables/trace";
/// The rest of the source of a resync, with the names of its last barrier: two copies, in turn.
pub const REST_FILES: [&str; 2] = ["tables/rest.0", "tables/rest.1"];
/// The list of the change readers.
pub const READERS_FILE: &str = "tables/readers";
/// The tables of the marks of the change readers: two for each.
pub const READER_MARK_FILES: [[&str; 2]; 4] = [
    ["tables/reader.0.0", "tables/reader.0.1"],
    ["tables/reader.1.0", "tables/reader.1.1"],
    ["tables/reader.2.0", "tables/reader.2.1"],
    ["tables/reader.3.0", "tables/reader.3.1"],
];
/// The directory of the packs.
pub const PACKS_DIR: &str = "packs";
/// The directory above the content of freed inodes that snapshots see.
pub const BODIES_DIR: &str = "bodies";
/// The directory of the marks of snapshots that are given up.
pub const GIVEN_UP_DIR: &str = "given-up";
/// The directory above all content.
pub const CONTENT_DIR: &str = "content";
/// The directory that holds the content of an inode: 256 inodes to each. The disk places each of these
/// directories, with its files, apart from the others ([`Backing::scatter`]). The number is small for a reason:
/// for each new file, ext4 without a journal steps one by one over every inode that was freed in the same place
/// within the last half minute.
///
/// [`Backing::scatter`]: lockstep_types::backing::Backing::scatter
pub fn content_dir(ino: Ino) -> String {
    format!("{CONTENT_DIR}/{:x}", ino.get() >> 8)
}

/// Whether [`content_dir`] gives some inode a directory of this name.
pub fn is_content_dir(name: &str) -> bool {
    let number = u64::from_str_radix(name, 16);
    number.is_ok_and(|number| number <= u64::MAX >> 8 && format!("{number:x}") == name)
}

/// The content file of an inode.
pub fn content_path(ino: Ino) -> String {
    format!("{}/{:x}", content_dir(ino), ino.get())
}

/// The inode whose content file `path` is; `None` for a path that [`content_path`] never gives.
pub fn content_owner(path: &str) -> Option<Ino> {
    let (_, name) = path.rsplit_once('/')?;
    let ino = u64::from_str_radix(name, 16).ok().and_then(Ino::new)?;
    (content_path(ino) == path).then_some(ino)
}

/// The file with the slot of an inode: 1,048,576 inodes to each.
pub fn sum_slots_path(ino: Ino) -> String {
    format!("{SUMS_DIR}/slots.{:x}", ino.get() >> 20)
}

/// The directory of the sums of an inode's further blocks.
pub fn block_sums_dir(ino: Ino) -> String {
    format!("{SUMS_DIR}/{:x}", ino.get() >> 8)
}

/// The sums of an inode's further blocks.
pub fn block_sums_path(ino: Ino) -> String {
    format!("{}/{:x}", block_sums_dir(ino), ino.get())
}

/// Whether a file has sums of content.
pub fn is_sums(path: &str) -> bool {
    let inside = path.strip_prefix(SUMS_DIR);
    path != ERA_FILE && inside.is_some_and(|rest| rest.starts_with('/'))
}

/// The inode whose further block sums the file at `path` has; `None` for a path that [`block_sums_path`] never gives.
pub fn block_sums_owner(path: &str) -> Option<Ino> {
    let (_, name) = path.rsplit_once('/')?;
    let ino = u64::from_str_radix(name, 16).ok().and_then(Ino::new)?;
    (block_sums_path(ino) == path).then_some(ino)
}

/// A snapshot in the name of a file.
fn snapshot_name(SnapshotId { osn, local }: SnapshotId) -> String {
    format!("{:x}.{:x}.{local:x}", osn.generation.get(), osn.sequence)
}

/// The snapshot with this name; `None` for a name that [`snapshot_name`] never gives.
fn snapshot_of_name(name: &str) -> Option<SnapshotId> {
    let mut numbers = name.split('.');
    let mut next = || u64::from_str_radix(numbers.next()?, 16).ok();
    let osn = Osn {
        generation: Generation::new(next()?)?,
        sequence: next()?,
    };
    let local = u8::try_from(next()?).ok()?;
    let id = SnapshotId { osn, local };
    (snapshot_name(id) == name).then_some(id)
}

/// The pack with a number, which keeps blocks for snapshot `label`.
pub fn pack_path(number: u64, label: SnapshotId) -> String {
    format!("{PACKS_DIR}/{number:x}.{}", snapshot_name(label))
}

/// Number and snapshot of the pack with this name in its directory; `None` for a name that [`pack_path`] never gives.
pub fn pack_owner(name: &str) -> Option<(u64, SnapshotId)> {
    let (number, label) = name.split_once('.')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    let label = snapshot_of_name(label)?;
    let path = pack_path(number, label);
    (path.strip_prefix(PACKS_DIR)?.strip_prefix('/')? == name).then_some((number, label))
}

/// Whether a file is a pack.
pub fn is_pack(path: &str) -> bool {
    path.strip_prefix(PACKS_DIR)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// The content of a freed inode that snapshot `seen_by` sees.
pub fn body_path(ino: Ino, seen_by: SnapshotId) -> String {
    let number = ino.get();
    let name = snapshot_name(seen_by);
    format!("{BODIES_DIR}/{:x}/{number:x}.{name}", number >> 8)
}

/// Whether a file is the content of a freed inode that snapshots see.
pub fn is_body(path: &str) -> bool {
    path.strip_prefix(BODIES_DIR)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Whether a file says that a snapshot is given up.
pub fn is_given_up_mark(path: &str) -> bool {
    path.strip_prefix(GIVEN_UP_DIR)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// The file that says that a snapshot is given up.
pub fn given_up_path(id: SnapshotId) -> String {
    format!("{GIVEN_UP_DIR}/{}", snapshot_name(id))
}

/// The snapshot whose mark has this name in its directory; `None` for a name that [`given_up_path`] never gives.
pub fn given_up_owner(name: &str) -> Option<SnapshotId> {
    snapshot_of_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_content_names_its_inode_and_no_other_does() {
        for number in [1, 255, 256, 0x1234_5678, u64::MAX] {
            let ino = Ino::new(number).unwrap();
            assert_eq!(content_owner(&content_path(ino)), Some(ino));
        }
        for path in [
            "1a",
            "content/1a",
            "content/1/1a",
            "content/0/01a",
            "content/0/1A",
            "content/0/+1",
            "content/0/0",
            "tables/0/1a",
            "content/0/1a.old",
        ] {
            assert_eq!(content_owner(path), None, "{path}");
        }
    }

    #[test]
    fn a_pack_is_told_by_its_name() {
        let label = SnapshotId {
            osn: Osn {
                sequence: u64::MAX,
                ..Osn::ZERO
            },
            local: 255,
        };
        let path = pack_path(0x1f, label);
        assert_eq!(path, "packs/1f.1.ffffffffffffffff.ff");
        let name = path.strip_prefix("packs/").unwrap();
        assert_eq!(pack_owner(name), Some((0x1f, label)));
        for name in [
            "",
            "1f",
            "1.0.1.0",
            "1.1.1",
            "1.1.1.0.0",
            "01.1.1.0",
            "1.1.1.100",
        ] {
            assert_eq!(pack_owner(name), None, "{name}");
        }
    }

    #[test]
    fn a_directory_of_content_is_told_by_its_name() {
        for number in [1, 255, 256, 0x1234_5678, u64::MAX] {
            let path = content_dir(Ino::new(number).unwrap());
            let name = path.strip_prefix("content/").unwrap();
            assert!(is_content_dir(name), "{name}");
        }
        for name in [
            "",
            "lost+found",
            "A",
            "01",
            "+1",
            "100000000000000",
            "1.old",
        ] {
            assert!(!is_content_dir(name), "{name}");
        }
    }
}
