//! What must hold when everything is over.

use lockstep_fs::Store;
use lockstep_types::Ino;
use lockstep_verify::digest::{Limits, digests};
use lockstepfs::datastore::Datastore;

/// More than any schedule makes.
const EVERYTHING: Limits = Limits {
    inodes: 100_000,
    bytes: 1 << 40,
};

/// In sync means identical: every inode, attribute, entry, cookie and byte.
pub fn identical(primary: &Store, secondary: &Store) -> Result<(), String> {
    let stores = [primary, secondary];
    let of = |store| digests(store, 1, u64::MAX, EVERYTHING).map_err(|error| format!("{error:?}"));
    let (primary, secondary) = (of(primary)?, of(secondary)?);
    if primary == secondary {
        return Ok(());
    }
    let differing = differing(&primary.list, &secondary.list);
    let different: Vec<String> = differing
        .chain(self::differing(&secondary.list, &primary.list))
        .map(|ino| explain(ino, stores))
        .collect();
    Err(format!("in sync but different: {}", different.join("; ")))
}

/// The inodes of one node that the other does not have alike.
fn differing<'a, T: PartialEq>(
    mine: &'a [(u64, T)],
    theirs: &'a [(u64, T)],
) -> impl Iterator<Item = u64> {
    let only = mine.iter().filter(|entry| !theirs.contains(entry));
    only.map(|(ino, _)| *ino)
}

/// What the two stores have of an inode.
fn explain(ino: u64, stores: [&Store; 2]) -> String {
    let Some(ino) = Ino::new(ino) else {
        return format!("inode {ino}");
    };
    let [primary, secondary] = stores.map(|store| {
        let record = store.inode_now(ino);
        let mut bytes = vec![0; EXPLAINED_BYTES];
        let read = store.read(ino, 0, &mut bytes).unwrap_or(0);
        let words = bytes.chunks(4096).take(read.div_ceil(4096));
        let writes: Vec<u8> = words.filter_map(|block| block.first().copied()).collect();
        format!("{record:?}, blocks begin {writes:?}")
    });
    format!("inode {ino}: primary {primary}; secondary {secondary}")
}

/// How much of a file is explained.
const EXPLAINED_BYTES: usize = 64 << 10;

/// Nothing waits, and nothing was forgotten.
pub fn at_rest(datastore: &Datastore) -> Result<(), String> {
    let status = datastore.status();
    let orphans = datastore
        .store()
        .orphans()
        .map_err(|error| format!("{error:?}"))?;
    let left = [
        ("writes in flight", status.writes_in_flight),
        ("metadata operations in flight", status.metadata_in_flight),
        ("PAW entries", status.paw),
        ("SAW entries", status.saw),
        ("inodes without a name", orphans.len() as u64),
    ];
    match left.iter().find(|(_, count)| *count > 0) {
        None => Ok(()),
        Some((what, count)) => Err(format!("{:?} at rest: {count} {what}", status.role)),
    }
}
