//! A file system as simple as it can be: maps in memory behind one lock. Tests mount it in place
//! of a datastore, and compare datastores with it.
//!
//! It says what each operation means, without caring how long it takes or what a crash leaves.

#![allow(dead_code)] // no test uses all of it
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::ops::ControlFlow;
use std::time::SystemTime;

use lockstep_driver::client::{DirEntry, Done, FileService, ReadDone, Seek, WriteOptions};
use lockstep_types::backing::Space;
use lockstep_types::{Attr, Errno, FileName, Ino, MetaRequest};
use parking_lot::Mutex;

pub mod acl;
pub mod content;
pub mod tree;

use tree::Tree;

/// The model as a service. Every operation is done when the call returns.
#[derive(Default)]
pub struct ModelFs {
    tree: Mutex<Tree>,
}

impl ModelFs {
    /// How many inodes exist, unlinked ones that somebody holds included.
    pub fn inodes(&self) -> usize {
        self.tree.lock().inodes()
    }

    /// References that the kernel's cache and open handles hold on an inode.
    pub fn holds(&self, ino: Ino) -> u64 {
        self.tree.lock().holds(ino)
    }
}

fn now() -> lockstep_types::Timestamp {
    SystemTime::now().into()
}

impl FileService for ModelFs {
    fn lookup(&self, parent: Ino, name: &FileName) -> Result<Attr, Errno> {
        let tree = self.tree.lock();
        tree.attr(tree.find(parent, name)?)
    }

    fn lookup_parent(&self, directory: Ino) -> Result<Attr, Errno> {
        let tree = self.tree.lock();
        tree.attr(tree.directory(directory)?.parent)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        self.tree.lock().attr(ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        Ok(self.tree.lock().inode(ino)?.target.clone())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let tree = self.tree.lock();
        let value = tree.inode(ino)?.xattrs.get(name);
        value.cloned().ok_or(Errno::NoData)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let tree = self.tree.lock();
        let names = tree.inode(ino)?.xattrs.keys();
        Ok(names.flat_map(|name| [name, &b"\0"[..]].concat()).collect())
    }

    fn readdir(
        &self,
        directory: Ino,
        after: u64,
        each: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let tree = self.tree.lock();
        let entries = tree.directory(directory)?.after(after);
        for (cookie, name, ino) in entries {
            let entry = DirEntry {
                cookie,
                ino,
                kind: tree.inode(ino)?.attr.kind,
                name,
            };
            if each(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> Result<Space, Errno> {
        Ok(Space {
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            available_bytes: 1 << 39,
            total_files: 1 << 20,
            free_files: 1 << 19,
        })
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        let tree = self.tree.lock();
        let inode = tree.inode(ino)?;
        inode.content.seek(inode.attr.size, offset, what)
    }

    fn opened(&self, ino: Ino) -> Result<(), Errno> {
        let mut tree = self.tree.lock();
        tree.inode(ino)?;
        tree.hold(ino, 1);
        Ok(())
    }

    fn closed(&self, ino: Ino) {
        self.tree.lock().let_go(ino, 1);
    }

    fn remembered(&self, ino: Ino, count: u64) {
        self.tree.lock().hold(ino, count);
    }

    fn forgotten(&self, ino: Ino, count: u64) {
        self.tree.lock().let_go(ino, count);
    }

    fn next_ino(&self) -> Result<Ino, Errno> {
        Ok(self.tree.lock().next_ino())
    }

    fn read(&self, ino: Ino, offset: u64, length: usize, done: ReadDone) {
        let read = self.tree.lock().read(ino, offset, length);
        done(read.as_deref().map_err(|errno| *errno));
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], options: WriteOptions<'_>, done: Done<()>) {
        let drop = options.drop_set_id;
        let written = self.tree.lock().write(now(), ino, offset, data, drop);
        done(written);
    }

    fn change(&self, request: MetaRequest, done: Done<Option<Attr>>) {
        let changed = self.tree.lock().apply(now(), request);
        done(changed);
    }

    fn copy(&self, from: (Ino, u64), to: (Ino, u64), length: u64, done: Done<u64>) {
        let copied = self.tree.lock().copy(now(), from, to, length);
        done(copied);
    }

    fn sync(&self, ino: Ino, done: Done<()>) {
        let synced = self.tree.lock().inode(ino).map(|_| ());
        done(synced);
    }
}
