//! The complete content of a store, read for the checks.

use std::ops::ControlFlow;

use lockstep_fs::plan::View;
use lockstep_fs::record::{self, NamedEntry};
use lockstep_fs::{OpError, Store, StoreView};
use lockstep_types::Ino;

use crate::check::{Body, Dump, Entry, Inode};

/// More inodes than any schedule makes.
const INODES_MAX: usize = 100_000;

/// Returns the complete content of a store.
pub fn dump(store: &Store) -> Result<Dump, String> {
    let error_text = |error: OpError| format!("a store cannot be read: {error:?}");
    let mut dump = Dump::default();
    for (ino, _) in store
        .tree()
        .inodes(1, u64::MAX, INODES_MAX)
        .map_err(error_text)?
    {
        if let Some(inode) = inode(store, ino).map_err(error_text)? {
            dump.inodes.insert(ino, inode);
        }
    }
    Ok(dump)
}

fn inode(store: &Store, ino: Ino) -> Result<Option<Inode>, OpError> {
    let Some(record) = store.tree().inode(ino)? else {
        return Ok(None);
    };
    let attr = record.attr(ino);
    let xattrs = store.tree().listxattr(ino)?.into_iter();
    let valued = xattrs.map(|name| Ok((name.clone(), store.tree().getxattr(ino, &name)?)));
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
        body: body(store, ino, attr.size, &record.body)?,
    }))
}

fn body(store: &Store, ino: Ino, size: u64, record: &record::Body) -> Result<Body, OpError> {
    Ok(match record {
        record::Body::File { .. } => {
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
            let read = store.read(ino, 0, &mut bytes)?;
            bytes.truncate(read);
            Body::File(bytes)
        }
        record::Body::Directory { .. } => Body::Directory(entries(store, ino)?),
        record::Body::Symlink { target } => Body::Symlink(target.clone()),
        _ => Body::Nothing,
    })
}

fn entries(store: &Store, directory: Ino) -> Result<Vec<Entry>, OpError> {
    let mut entries = Vec::new();
    let mut each = |cookie, NamedEntry { name, ino, .. }| {
        entries.push(Entry { cookie, name, ino });
        ControlFlow::Continue(())
    };
    store.tree().readdir(directory, 0, &mut each)?;
    // `readdir` returns the newest entry first.
    entries.reverse();
    Ok(entries)
}
