//! Writing a node's store out as a plain tree, without node, peer or mount.
//!
//! The store is only read: recovery after a crash happens in memory, and nothing in the store's directory changes.
//! Memory grows with the largest directories on one path and with the inodes that have several names, not with the
//! depth or the size of the tree.

mod error;
mod links;
mod lost;
mod manifest;
mod place;
mod unfinished;

use std::fs::File;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::vec::IntoIter;

use blake3::Hasher;
use lockstep_intentlog::LogOptions;
use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::{Attr, Ino, NodeKind};

pub use error::ExportError;
pub use lost::Lost;
pub use manifest::HEADER;

use crate::backing::os_backing::OsBacking;
use crate::boot::boot_id;
use crate::error::{OpError, StoreError};
use crate::namespace::record::NamedEntry;
use crate::store::{Access, OpenOptions, Store};
use crate::text::{escaped, hex};
use crate::view::StoreView;
use links::Links;
use manifest::{Manifest, ManifestLine};
use place::{Created, FailedCall, Loss, Losses, Xattrs};
use rustix::io::Errno;
use unfinished::{Unfinished, check_empty};

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// Counts of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportSummary {
    /// Names created, without the root.
    pub names: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Regular files. A file with several names counts once.
    pub files: u64,
    /// Bytes of content copied; holes are none.
    pub bytes: u64,
    /// Losses: parts that the destination could not take, each reported as a [`Lost`].
    pub lost: u64,
    /// Losses that are missing names: of files, directories or special files.
    pub missing: u64,
}

/// Writes the store in `store_dir` out to `dest`, which must be missing or an empty directory, and a list of all names
/// to `manifest` (see [`HEADER`]), which must not exist. Until they are complete, both have names that end with
/// `.partial`. An existing `dest` is filled in place.
///
/// The copy keeps modes with set-id and sticky bits, owners, times of access and modification, extended attributes with
/// access control lists, symbolic and hard links, holes, and device nodes, pipes and sockets. Inodes without a name are
/// left out. Reserved space is not kept: a copy takes the space of its data. If the destination cannot hold a name, a
/// file of that size or an attribute, the loss is reported to `report` and to the manifest, and the export goes on. The
/// export stops if the destination fails or is full.
pub fn export(
    store_dir: &Path,
    dest: &Path,
    manifest: Option<&Path>,
    report: &mut dyn FnMut(&Lost),
) -> Result<ExportSummary, ExportError> {
    let store = open_store(store_dir)?;
    let list = manifest.map(Unfinished::file).transpose()?;
    let tree = Unfinished::directory(dest)?;
    let root = prepare(store_dir, &tree.path).map_err(|error| error.about(dest))?;
    let manifest = list.as_ref().map(|list| Manifest::create(&list.path));
    let manifest = manifest.transpose().inspect_err(|_| tree.forget())?;
    let view = store.tree();
    let mut export = Export::new(&view, root, manifest, report)?;
    let summary = export.tree().and_then(|()| export.finish(&tree.path));
    let summary = summary.map_err(|error| tree.incomplete(error))?;
    list.map_or(Ok(()), Unfinished::finish)?;
    tree.finish()?;
    Ok(summary)
}

fn open_store(dir: &Path) -> Result<Store, ExportError> {
    let disk = |source| ExportError::store(dir)(StoreError::disk("open", ".")(source));
    let backing = OsBacking::open(dir).map_err(disk)?;
    backing
        .lock_for_reading()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => ExportError::InUse { path: dir.into() },
            _ => ExportError::store(dir)(StoreError::disk("lock", ".")(error)),
        })?;
    let backing: Arc<dyn Backing> = Arc::new(backing);
    let options = OpenOptions {
        datastore: None,
        boot: boot_id(),
        access: Access::Read,
        log: LogOptions::default(),
    };
    let opened = Store::open(backing, &options).map_err(ExportError::store(dir))?;
    Ok(opened.store)
}

/// Makes the destination if it is missing.
fn prepare(store_dir: &Path, dest: &Path) -> Result<OwnedFd, ExportError> {
    let name = || escaped(dest.as_os_str().as_encoded_bytes());
    match std::fs::create_dir(dest) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => check_empty(dest)?,
        made => made.map_err(ExportError::write("make directory", name()))?,
    }
    if is_inside(dest, store_dir) {
        // The directory is still empty: leave no directory of an export in the store.
        let _ = std::fs::remove_dir(dest);
        return Err(ExportError::InsideStore { path: dest.into() });
    }
    let opened = place::open_directory(rustix::fs::CWD, dest.as_os_str().as_encoded_bytes());
    let root = opened.map_err(|failure| refused(failure, name()))?;
    place::drop_lists(&root).map_err(|failure| refused(failure, name()))?;
    Ok(root)
}

fn is_inside(inner: &Path, outer: &Path) -> bool {
    match (inner.canonicalize(), outer.canonicalize()) {
        (Ok(inner), Ok(outer)) => inner.starts_with(outer),
        _ => false,
    }
}

fn refused((operation, errno): FailedCall, name: String) -> ExportError {
    ExportError::write(operation, name)(errno)
}

/// A directory whose entries are being written.
struct Level {
    attr: Attr,
    xattrs: Xattrs,
    entries: IntoIter<NamedEntry>,
    /// Length of the path before the directory's own name.
    path_before: usize,
}

/// An export under way.
struct Export<'a> {
    view: &'a dyn StoreView,
    links: Links,
    manifest: Option<Manifest>,
    report: &'a mut dyn FnMut(&Lost),
    summary: ExportSummary,
    /// The deepest directory on the path that was created.
    current: OwnedFd,
    /// Directories on the path below `current`, which could not be created.
    missing: usize,
    /// The levels of directories up to the root.
    levels: Vec<Level>,
    path: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'a> Export<'a> {
    fn new(
        view: &'a dyn StoreView,
        root: OwnedFd,
        manifest: Option<Manifest>,
        report: &'a mut dyn FnMut(&Lost),
    ) -> Result<Self, ExportError> {
        let is_taken = |name: &[u8]| {
            lockstep_types::FileName::new(name)
                .is_ok_and(|name| view.lookup(Ino::ROOT, &name).is_ok())
        };
        let links = Links::new(root.as_fd(), is_taken);
        Ok(Self {
            view,
            links: links.map_err(|failure| refused(failure, ".".to_owned()))?,
            manifest,
            report,
            summary: ExportSummary::default(),
            current: root,
            missing: 0,
            levels: Vec::new(),
            path: Vec::new(),
            buffer: vec![0; COPY_BYTES],
        })
    }

    /// The path being written, on one line.
    fn name(&self) -> String {
        escaped(if self.path.is_empty() {
            b"."
        } else {
            &self.path
        })
    }

    fn read<T>(&self, read: Result<T, OpError>) -> Result<T, ExportError> {
        read.map_err(|source| ExportError::Read {
            name: self.name(),
            source,
        })
    }

    fn check<T>(&self, made: Result<T, FailedCall>) -> Result<T, ExportError> {
        made.map_err(|failure| refused(failure, self.name()))
    }

    /// Reports the attributes that a new inode lacks.
    fn report_losses(&mut self, made: Result<Losses, FailedCall>) -> Result<(), ExportError> {
        for (loss, errno) in self.check(made)? {
            self.report_loss(&loss, errno)?;
        }
        Ok(())
    }

    /// Reports a part that the destination cannot hold.
    fn report_loss(&mut self, loss: &Loss, errno: Errno) -> Result<(), ExportError> {
        let entry = Lost::new(self.name(), loss, errno);
        self.summary.lost += 1;
        self.summary.missing += u64::from(loss.is_of_name());
        (self.report)(&entry);
        match &mut self.manifest {
            Some(manifest) => manifest.loss(&entry),
            None => Ok(()),
        }
    }

    /// Counts a new inode, or reports that the destination cannot hold it.
    fn count_created<T>(
        &mut self,
        made: Result<Created<T>, FailedCall>,
        loss: &Loss,
    ) -> Result<Option<T>, ExportError> {
        match self.check(made)? {
            Ok(made) => {
                self.summary.names += 1;
                Ok(Some(made))
            }
            Err(errno) => {
                self.report_loss(loss, errno)?;
                Ok(None)
            }
        }
    }

    /// Writes everything but the root's attributes.
    fn tree(&mut self) -> Result<(), ExportError> {
        let root = self.read(self.view.getattr(Ino::ROOT))?;
        self.enter(root, 0)?;
        self.summary.directories += 1;
        while let Some(level) = self.levels.last_mut() {
            if let Some(entry) = level.entries.next() {
                self.entry(&entry)?;
            } else if self.levels.len() > 1 {
                self.leave()?;
            } else {
                break;
            }
        }
        Ok(())
    }

    /// Starts with a new directory, which is open.
    fn enter(&mut self, attr: Attr, path_before: usize) -> Result<(), ExportError> {
        let xattrs = self.xattrs(attr.ino)?;
        self.line(&attr, "-".to_owned(), &xattrs)?;
        let mut entries = Vec::new();
        let listed = self.view.readdir(attr.ino, 0, &mut |_, entry| {
            entries.push(entry);
            ControlFlow::Continue(())
        });
        self.read(listed)?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.levels.push(Level {
            attr,
            xattrs,
            entries: entries.into_iter(),
            path_before,
        });
        Ok(())
    }

    /// Gives the finished directory its attributes and returns to its parent.
    fn leave(&mut self) -> Result<(), ExportError> {
        let Some(level) = self.levels.pop() else {
            return Ok(());
        };
        if self.missing > 0 {
            self.missing -= 1;
        } else {
            let above = self.check(place::open_directory(self.current.as_fd(), b".."))?;
            let finished = place::finish(self.current.as_fd(), &level.attr, &level.xattrs);
            self.report_losses(finished)?;
            self.current = above;
        }
        self.path.truncate(level.path_before);
        Ok(())
    }

    fn entry(&mut self, entry: &NamedEntry) -> Result<(), ExportError> {
        let before = self.path.len();
        if before > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(entry.name.as_bytes());
        let attr = self.read(self.view.getattr(entry.ino))?;
        let name = entry.name.as_bytes();
        if attr.kind == NodeKind::Directory {
            self.go_into(name)?;
            return self.enter(attr, before);
        }
        self.leaf(&attr, name)?;
        self.path.truncate(before);
        Ok(())
    }

    /// Creates a directory and goes on in it. A directory that cannot be created is walked all the same.
    fn go_into(&mut self, name: &[u8]) -> Result<(), ExportError> {
        let made = if self.missing > 0 {
            self.report_loss(&Loss::Below, Errno::NOENT)?;
            None
        } else {
            let made = place::make_directory(self.current.as_fd(), name);
            self.count_created(made, &Loss::Directory)?
        };
        match made {
            Some(made) => {
                self.current = made;
                self.summary.directories += 1;
            }
            None => self.missing += 1,
        }
        Ok(())
    }

    /// Exports an inode that is no directory.
    fn leaf(&mut self, attr: &Attr, name: &[u8]) -> Result<(), ExportError> {
        let xattrs = self.xattrs(attr.ino)?;
        let is_to_make = self.is_to_make(attr.ino, name)?;
        let content = match attr.kind {
            NodeKind::File => self.file(attr, name, &xattrs, is_to_make)?,
            _ => self.node(attr, name, &xattrs, is_to_make)?,
        };
        self.line(attr, content, &xattrs)
    }

    /// Whether the inode of a name is yet to be created. If not, the inode was created before, or cannot be created.
    fn is_to_make(&mut self, ino: Ino, name: &[u8]) -> Result<bool, ExportError> {
        if self.missing > 0 {
            self.report_loss(&Loss::Below, Errno::NOENT)?;
            return Ok(false);
        }
        let linked = self.links.link(ino, self.current.as_fd(), name);
        match self.check(linked)? {
            None => Ok(true),
            Some(Err(Errno::MLINK)) => {
                self.report_loss(&Loss::Links, Errno::MLINK)?;
                let forgotten = self.links.forget(ino);
                self.check(forgotten)?;
                Ok(true)
            }
            Some(linked) => {
                self.count_created(Ok(linked), &Loss::Name)?;
                Ok(false)
            }
        }
    }

    /// Remembers a new inode for its further names.
    fn remember(&mut self, attr: &Attr, name: &[u8]) -> Result<(), ExportError> {
        let kept = self.links.remember(attr, self.current.as_fd(), name);
        self.report_losses(kept)
    }

    fn xattrs(&self, ino: Ino) -> Result<Xattrs, ExportError> {
        let names = self.read(self.view.listxattr(ino))?;
        let value = |name: Vec<u8>| -> Result<_, ExportError> {
            let value = self.read(self.view.getxattr(ino, &name))?;
            Ok((name, value))
        };
        names.into_iter().map(value).collect()
    }

    fn line(&mut self, attr: &Attr, content: String, xattrs: &Xattrs) -> Result<(), ExportError> {
        let path = if self.path.is_empty() {
            b"."
        } else {
            &self.path[..]
        };
        match &mut self.manifest {
            None => Ok(()),
            Some(manifest) => manifest.line(&ManifestLine {
                path,
                attr,
                content,
                xattrs,
            }),
        }
    }

    fn node(
        &mut self,
        attr: &Attr,
        name: &[u8],
        xattrs: &Xattrs,
        is_to_make: bool,
    ) -> Result<String, ExportError> {
        let target = match attr.kind {
            NodeKind::Symlink => self.read(self.view.readlink(attr.ino))?,
            _ => Vec::new(),
        };
        if is_to_make {
            let made = place::make_node(self.current.as_fd(), name, attr, &target, xattrs);
            if let Some(losses) = self.count_created(made, &Loss::Node)? {
                self.report_losses(Ok(losses))?;
                self.remember(attr, name)?;
            }
        }
        Ok(match attr.kind {
            NodeKind::Symlink => escaped(&target),
            _ => "-".to_owned(),
        })
    }

    /// Exports a regular file. The content of a file that is not to be created is only hashed.
    fn file(
        &mut self,
        attr: &Attr,
        name: &[u8],
        xattrs: &Xattrs,
        is_to_make: bool,
    ) -> Result<String, ExportError> {
        self.read(self.view.check_content(attr.ino))?;
        let content = self.read(self.view.content(attr.ino).map_err(OpError::from))?;
        let mut file = None;
        if is_to_make {
            let made = place::make_file(self.current.as_fd(), name);
            file = self.count_created(made, &Loss::Name)?;
        }
        let hash = self.copy(content.as_deref(), attr.size, (name, &mut file))?;
        if let Some(file) = file {
            self.report_losses(place::finish(file.as_fd(), attr, xattrs))?;
            self.summary.files += 1;
            self.remember(attr, name)?;
        }
        Ok(hash)
    }

    /// Copies data, leaves holes, and returns the hash of the content. A file that gets too large is removed.
    fn copy(
        &mut self,
        content: Option<&dyn BackingFile>,
        size: u64,
        (name, file): (&[u8], &mut Option<File>),
    ) -> Result<String, ExportError> {
        let copied_before = self.summary.bytes;
        let grown = file.as_ref().map_or(Ok(()), |file| file.set_len(size));
        self.check_size(grown, "set the length of", (name, file))?;
        let mut hasher = self.manifest.is_some().then(Hasher::new);
        let mut at = 0;
        while at < size && (file.is_some() || hasher.is_some()) {
            let (from, to) = self.data_after(content, at, size)?;
            hash_zeros(hasher.as_mut(), from - at);
            self.copy_range(content, (from, to), (name, file), hasher.as_mut())?;
            at = to;
        }
        if file.is_none() {
            self.summary.bytes = copied_before;
        }
        Ok(hasher.map_or_else(String::new, |hasher| hex(hasher.finalize())))
    }

    /// Removes a file that is too large for the destination, and reports the loss.
    fn check_size(
        &mut self,
        done: std::io::Result<()>,
        operation: &'static str,
        (name, file): (&[u8], &mut Option<File>),
    ) -> Result<(), ExportError> {
        match done {
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                *file = None;
                self.check(place::remove(self.current.as_fd(), name))?;
                self.summary.names -= 1;
                self.report_loss(&Loss::Content, Errno::FBIG)
            }
            done => done.map_err(ExportError::write(operation, self.name())),
        }
    }

    /// The next range of data at or after `at`; empty and at the end if there is none.
    fn data_after(
        &self,
        content: Option<&dyn BackingFile>,
        at: u64,
        size: u64,
    ) -> Result<(u64, u64), ExportError> {
        let Some(content) = content else {
            return Ok((size, size));
        };
        let sought = |found: std::io::Result<Option<u64>>| {
            self.read(found.map_err(|error| StoreError::disk("seek", "content")(error).into()))
        };
        let Some(from) = sought(content.seek_data(at))?.filter(|from| *from < size) else {
            return Ok((size, size));
        };
        let to = sought(content.seek_hole(from))?.unwrap_or(size);
        Ok((from, to.min(size)))
    }

    fn copy_range(
        &mut self,
        content: Option<&dyn BackingFile>,
        (mut at, to): (u64, u64),
        (name, file): (&[u8], &mut Option<File>),
        mut hasher: Option<&mut Hasher>,
    ) -> Result<(), ExportError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let (Some(content), true) = (content, at < to) {
            let wanted = usize::try_from(to - at).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
            let piece = buffer.get_mut(..wanted).unwrap_or_default();
            let read = content.read_at(at, piece);
            let read =
                self.read(read.map_err(|error| StoreError::disk("read", "content")(error).into()))?;
            // Only a file that shrinks during the export ends early: its missing bytes read as zeros.
            piece.get_mut(read..).unwrap_or_default().fill(0);
            if let Some(open) = file.as_ref() {
                let written = open.write_all_at(piece, at);
                self.summary.bytes += piece.len() as u64;
                self.check_size(written, "write", (name, file))?;
            }
            if let Some(hasher) = &mut hasher {
                hasher.update(piece);
            }
            at += piece.len() as u64;
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Gives the root its attributes and makes the copy durable.
    fn finish(mut self, dest: &Path) -> Result<ExportSummary, ExportError> {
        let name = escaped(dest.as_os_str().as_encoded_bytes());
        let removed = self.links.finish();
        removed.map_err(|failure| refused(failure, name.clone()))?;
        if let Some(root) = self.levels.pop() {
            let finished = place::finish(self.current.as_fd(), &root.attr, &root.xattrs);
            self.report_losses(finished)?;
        }
        rustix::fs::syncfs(&self.current).map_err(ExportError::write("sync", name.clone()))?;
        self.manifest.map_or(Ok(()), Manifest::finish)?;
        Ok(self.summary)
    }
}

fn hash_zeros(hasher: Option<&mut Hasher>, mut count: u64) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let Some(hasher) = hasher else { return };
    while count > 0 {
        let piece = usize::try_from(count).map_or(ZEROS.len(), |count| count.min(ZEROS.len()));
        hasher.update(ZEROS.get(..piece).unwrap_or(&ZEROS));
        count -= piece as u64;
    }
}
