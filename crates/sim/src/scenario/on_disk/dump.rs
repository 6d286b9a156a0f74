//! The complete content of a store, read for the checks.

use std::ops::ControlFlow;

use lockstep_fs::record::{self, NamedEntry};
use lockstep_fs::{OpError, Store, StoreView};
use lockstep_types::Ino;

use crate::check::{Body, Dump, Entry, Inode};

/// More inodes than any schedule makes.
const INODES_MAX: usize = 100_000;

/// Reads the first bytes of a file, as many as the buffer has. Returns how many there are.
type ReadFile<'a> = &'a dyn Fn(Ino, &mut [u8]) -> Result<usize, OpError>;

/// Returns the complete content of a store.
pub fn dump(store: &Store) -> Result<Dump, String> {
    dump_with(&store.tree(), &|ino, bytes| store.read(ino, 0, bytes))
}

/// Returns the complete content of a store as a snapshot sees it.
pub fn dump_of_snapshot(view: &dyn StoreView) -> Result<Dump, String> {
    dump_with(view, &|ino, bytes| {
        view.read_raw(ino, 0, bytes)?;
        Ok(bytes.len())
    })
}

fn dump_with(view: &dyn StoreView, read: ReadFile<'_>) -> Result<Dump, String> {
    let error_text = |error: OpError| format!("a store cannot be read: {error:?}");
    let mut dump = Dump::default();
    for (ino, _) in view.inodes(1, u64::MAX, INODES_MAX).map_err(error_text)? {
        if let Some(inode) = inode(view, ino, read).map_err(error_text)? {
            dump.inodes.insert(ino, inode);
        }
    }
    Ok(dump)
}

fn inode(view: &dyn StoreView, ino: Ino, read: ReadFile<'_>) -> Result<Option<Inode>, OpError> {
    let Some(record) = view.inode(ino)? else {
        return Ok(None);
    };
    let attr = record.attr(ino);
    let xattrs = view.listxattr(ino)?.into_iter();
    let valued = xattrs.map(|name| Ok((name.clone(), view.getxattr(ino, &name)?)));
    Ok(Some(Inode {
        kind: attr.kind,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        rdev: attr.rdev,
        size: attr.size,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        xattrs: valued.collect::<Result<_, OpError>>()?,
        body: body(view, (ino, attr.size), &record.body, read)?,
    }))
}

fn body(
    view: &dyn StoreView,
    (ino, size): (Ino, u64),
    record: &record::Body,
    read: ReadFile<'_>,
) -> Result<Body, OpError> {
    Ok(match record {
        record::Body::File { .. } => {
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
            let count = read(ino, &mut bytes)?;
            bytes.truncate(count);
            Body::File(bytes)
        }
        record::Body::Directory { .. } => Body::Directory(entries(view, ino)?),
        record::Body::Symlink { target } => Body::Symlink(target.clone()),
        _ => Body::Nothing,
    })
}

fn entries(view: &dyn StoreView, directory: Ino) -> Result<Vec<Entry>, OpError> {
    let mut entries = Vec::new();
    let mut each = |cookie, NamedEntry { name, ino, .. }| {
        entries.push(Entry { cookie, name, ino });
        ControlFlow::Continue(())
    };
    view.readdir(directory, 0, &mut each)?;
    // `readdir` returns the newest entry first.
    entries.reverse();
    Ok(entries)
}
