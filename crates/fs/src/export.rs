//! Writing a node's store out as a plain tree, without node, peer or mount.
//!
//! The store is only looked at: recovery after a crash happens in memory, and nothing in the
//! store's directory changes. Memory grows with the largest directories on one path and with the
//! inodes that have several names, not with the depth or the size of the tree.

mod error;
mod links;
mod manifest;
mod place;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::vec::IntoIter;

use blake3::Hasher;
use lockstep_intentlog::LogOptions;
use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::{Attr, Ino, NodeKind};

pub use error::ExportError;
pub use manifest::HEADER;

use crate::boot::boot_id;
use crate::error::{OpError, StoreError};
use crate::os_backing::OsBacking;
use crate::record::NamedEntry;
use crate::store::{Access, OpenOptions, Store};
use links::Links;
use manifest::{Line, escaped, hex};
use place::{Failure, Loss, Losses, Xattrs};
use rustix::fs::AtFlags;
use rustix::io::Errno;

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// What an export wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportSummary {
    /// Names, the root not counted.
    pub names: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Regular files, each counted once however many names it has.
    pub files: u64,
    /// Bytes of content copied; holes are none.
    pub bytes: u64,
    /// What the destination could not take beside names and content, each told as a [`Lost`].
    pub lost: u64,
}

/// Something of an inode that the destination could not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Path of the inode in the datastore, escaped.
    pub name: String,
    /// What was lost, for people.
    pub what: String,
    /// What the system said.
    pub cause: String,
}

impl Lost {
    fn new(name: String, loss: &Loss, errno: rustix::io::Errno) -> Self {
        let what = match loss {
            Loss::Node => "the file itself".to_owned(),
            Loss::Links => "its other names, which lead to copies".to_owned(),
            Loss::Owner => "owner and set-id bits".to_owned(),
            Loss::Xattr(name) => format!("extended attribute {}", escaped(name)),
            Loss::Mode => "permission bits".to_owned(),
            Loss::Times => "times".to_owned(),
        };
        let cause = std::io::Error::from(errno).to_string();
        Self { name, what, cause }
    }
}

/// Writes the store in `store_dir` out to `dest`, which must be missing or an empty directory, and
/// a list of all names to `manifest` (see [`HEADER`]), which must not exist. Until they are complete both bear
/// a name that ends with `.partial`, but for a `dest` that exists, which is filled in its place.
///
/// Kept are modes with set-id and sticky bits, owners, times of access and modification, extended
/// attributes with access control lists, symbolic and hard links, holes, and device nodes, pipes
/// and sockets. What has no name any more is left out. What of this the destination cannot hold is told
/// to `tell` and to the manifest, and the export goes on: only names, directories and content must be
/// possible there.
pub fn export(
    store_dir: &Path,
    dest: &Path,
    manifest: Option<&Path>,
    tell: &mut dyn FnMut(&Lost),
) -> Result<ExportSummary, ExportError> {
    let store = open_store(store_dir)?;
    let list = manifest.map(Unfinished::file).transpose()?;
    let tree = Unfinished::directory(dest)?;
    let root = prepare(store_dir, &tree.path)?;
    let manifest = list.as_ref().map(|list| Manifest::create(&list.path));
    let manifest = manifest.transpose().inspect_err(|_| tree.forget())?;
    let mut export = Export::new(&store, root, manifest, tell)?;
    let summary = export.tree().and_then(|()| export.finish(&tree.path));
    let summary = summary.map_err(|error| tree.incomplete(error))?;
    list.map_or(Ok(()), Unfinished::finish)?;
    tree.finish()?;
    Ok(summary)
}

/// Something that bears another name until it is complete, so that nobody takes a part for the whole.
struct Unfinished {
    path: PathBuf,
    /// The name that it gets; `None` if it must be written in its place.
    complete: Option<PathBuf>,
}

impl Unfinished {
    /// A file that does not exist yet.
    fn file(path: &Path) -> Result<Self, ExportError> {
        if path.symlink_metadata().is_ok() {
            return Err(ExportError::ManifestExists { path: path.into() });
        }
        Self::beside(path)
    }

    /// A directory that is missing, or empty. One that is the root of a file system cannot be replaced.
    fn directory(dest: &Path) -> Result<Self, ExportError> {
        match std::fs::symlink_metadata(dest) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::beside(dest),
            _ => {
                check_empty(dest)?;
                Ok(Self {
                    path: dest.into(),
                    complete: None,
                })
            }
        }
    }

    fn beside(path: &Path) -> Result<Self, ExportError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        if partial.symlink_metadata().is_ok() {
            return Err(ExportError::PartExists { path: partial });
        }
        Ok(Self {
            path: partial,
            complete: Some(path.into()),
        })
    }

    /// Removes the directory that was made, while it is empty.
    fn forget(&self) {
        if self.complete.is_some() {
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    /// Says where the part is that was written.
    fn incomplete(&self, source: ExportError) -> ExportError {
        ExportError::Incomplete {
            path: self.path.clone(),
            source: Box::new(source),
        }
    }

    /// Gives it its name, unless somebody has taken that meanwhile.
    fn finish(self) -> Result<(), ExportError> {
        let Some(complete) = &self.complete else {
            return Ok(());
        };
        let name = escaped(self.path.as_os_str().as_encoded_bytes());
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        let here = rustix::fs::CWD;
        rustix::fs::renameat_with(here, &self.path, here, complete, flags)
            .map_err(ExportError::write("rename", name))
    }
}

fn open_store(dir: &Path) -> Result<Store, ExportError> {
    let disk = |source| ExportError::store(dir)(StoreError::disk("open", ".")(source));
    let backing = OsBacking::open(dir).map_err(disk)?;
    backing.lock_to_look().map_err(|error| match error.kind() {
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
        // Still empty: leave nothing of ours in the store.
        let _ = std::fs::remove_dir(dest);
        return Err(ExportError::InsideStore { path: dest.into() });
    }
    let opened = place::open_directory(rustix::fs::CWD, dest.as_os_str().as_encoded_bytes());
    let root = opened.map_err(|failure| refused(failure, name()))?;
    place::drop_lists(&root).map_err(|failure| refused(failure, name()))?;
    Ok(root)
}

fn check_empty(dest: &Path) -> Result<(), ExportError> {
    match std::fs::read_dir(dest).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        _ => Err(ExportError::NotEmpty { path: dest.into() }),
    }
}

fn is_inside(inner: &Path, outer: &Path) -> bool {
    match (inner.canonicalize(), outer.canonicalize()) {
        (Ok(inner), Ok(outer)) => inner.starts_with(outer),
        _ => false,
    }
}

fn refused((operation, errno): Failure, name: String) -> ExportError {
    ExportError::write(operation, name)(errno)
}

/// The list that is written beside.
struct Manifest {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Manifest {
    fn create(path: &Path) -> Result<Self, ExportError> {
        let name = escaped(path.as_os_str().as_encoded_bytes());
        let file = File::create_new(path).map_err(ExportError::write("make", name))?;
        let mut manifest = Self {
            path: path.into(),
            file: BufWriter::new(file),
        };
        let written = writeln!(manifest.file, "{HEADER}");
        manifest.check(written)?;
        Ok(manifest)
    }

    fn check<T>(&self, done: std::io::Result<T>) -> Result<T, ExportError> {
        let name = escaped(self.path.as_os_str().as_encoded_bytes());
        done.map_err(ExportError::write("write", name))
    }

    fn line(&mut self, line: &Line<'_>) -> Result<(), ExportError> {
        let written = line.write(&mut self.file);
        self.check(written)
    }

    fn loss(&mut self, lost: &Lost) -> Result<(), ExportError> {
        let written = manifest::write_loss(&mut self.file, lost);
        self.check(written)
    }

    fn finish(mut self) -> Result<(), ExportError> {
        let flushed = self.file.flush();
        self.check(flushed)?;
        let synced = self.file.get_ref().sync_all();
        self.check(synced)
    }
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
    store: &'a Store,
    links: Links,
    manifest: Option<Manifest>,
    tell: &'a mut dyn FnMut(&Lost),
    summary: ExportSummary,
    /// The directory that is being written, and its levels up to the root.
    current: OwnedFd,
    levels: Vec<Level>,
    path: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'a> Export<'a> {
    fn new(
        store: &'a Store,
        root: OwnedFd,
        manifest: Option<Manifest>,
        tell: &'a mut dyn FnMut(&Lost),
    ) -> Result<Self, ExportError> {
        let is_taken = |name: &[u8]| {
            lockstep_types::FileName::new(name)
                .is_ok_and(|name| store.lookup(Ino::ROOT, &name).is_ok())
        };
        let links = Links::new(root.as_fd(), is_taken);
        Ok(Self {
            store,
            links: links.map_err(|failure| refused(failure, ".".to_owned()))?,
            manifest,
            tell,
            summary: ExportSummary::default(),
            current: root,
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

    fn made<T>(&self, made: Result<T, Failure>) -> Result<T, ExportError> {
        made.map_err(|failure| refused(failure, self.name()))
    }

    /// What was made without some of its attributes: tells of those.
    fn made_with(&mut self, made: Result<Losses, Failure>) -> Result<(), ExportError> {
        for (loss, errno) in self.made(made)? {
            let lost = Lost::new(self.name(), &loss, errno);
            self.summary.lost += 1;
            (self.tell)(&lost);
            if let Some(manifest) = &mut self.manifest {
                manifest.loss(&lost)?;
            }
        }
        Ok(())
    }

    /// Writes everything but the root's attributes.
    fn tree(&mut self) -> Result<(), ExportError> {
        let root = self.read(self.store.getattr(Ino::ROOT))?;
        self.enter(root, 0)?;
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

    /// Starts with a directory that was made and is open.
    fn enter(&mut self, attr: Attr, path_before: usize) -> Result<(), ExportError> {
        let xattrs = self.xattrs(attr.ino)?;
        self.line(&attr, "-".to_owned(), &xattrs)?;
        let mut entries = Vec::new();
        let listed = self.store.readdir(attr.ino, 0, &mut |_, entry| {
            entries.push(entry);
            ControlFlow::Continue(())
        });
        self.read(listed)?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.summary.directories += 1;
        self.levels.push(Level {
            attr,
            xattrs,
            entries: entries.into_iter(),
            path_before,
        });
        Ok(())
    }

    /// Gives the finished directory its attributes and goes on above it.
    fn leave(&mut self) -> Result<(), ExportError> {
        if let Some(level) = self.levels.pop() {
            let above = self.made(place::open_directory(self.current.as_fd(), b".."))?;
            let finished = place::finish(self.current.as_fd(), &level.attr, &level.xattrs);
            self.made_with(finished)?;
            self.current = above;
            self.path.truncate(level.path_before);
        }
        Ok(())
    }

    fn entry(&mut self, entry: &NamedEntry) -> Result<(), ExportError> {
        let before = self.path.len();
        if before > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(entry.name.as_bytes());
        self.summary.names += 1;
        let attr = self.read(self.store.getattr(entry.ino))?;
        let name = entry.name.as_bytes();
        if attr.kind == NodeKind::Directory {
            self.current = self.made(place::make_directory(self.current.as_fd(), name))?;
            return self.enter(attr, before);
        }
        self.leaf(&attr, name)?;
        self.path.truncate(before);
        Ok(())
    }

    /// Anything but a directory.
    fn leaf(&mut self, attr: &Attr, name: &[u8]) -> Result<(), ExportError> {
        let xattrs = self.xattrs(attr.ino)?;
        let linked = self.links.link(attr.ino, self.current.as_fd(), name);
        let linked = self.made(linked)?;
        let content = match attr.kind {
            NodeKind::File => self.file(attr, name, &xattrs, linked)?,
            _ => self.node(attr, name, &xattrs, linked)?,
        };
        if !linked {
            self.remember(attr, name)?;
        }
        self.line(attr, content, &xattrs)
    }

    /// Keeps an inode with further names for those; one that could not be made has none.
    fn remember(&mut self, attr: &Attr, name: &[u8]) -> Result<(), ExportError> {
        let at = self.current.as_fd();
        let stat = || rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW);
        if attr.nlink < 2 || stat().is_err_and(|errno| errno == Errno::NOENT) {
            return Ok(());
        }
        let kept = self.links.remember(attr, at, name);
        self.made_with(kept)
    }

    fn xattrs(&self, ino: Ino) -> Result<Xattrs, ExportError> {
        let names = self.read(self.store.listxattr(ino))?;
        let value = |name: Vec<u8>| -> Result<_, ExportError> {
            let value = self.read(self.store.getxattr(ino, &name))?;
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
            Some(manifest) => manifest.line(&Line {
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
        linked: bool,
    ) -> Result<String, ExportError> {
        let target = match attr.kind {
            NodeKind::Symlink => self.read(self.store.readlink(attr.ino))?,
            _ => Vec::new(),
        };
        if !linked {
            let made = place::make_node(self.current.as_fd(), name, attr, &target, xattrs);
            self.made_with(made)?;
        }
        Ok(match attr.kind {
            NodeKind::Symlink => escaped(&target),
            _ => "-".to_owned(),
        })
    }

    /// A regular file; a further name of one is only hashed.
    fn file(
        &mut self,
        attr: &Attr,
        name: &[u8],
        xattrs: &Xattrs,
        linked: bool,
    ) -> Result<String, ExportError> {
        let content = self.read(self.store.whole_content(attr.ino))?;
        let file = if linked {
            None
        } else {
            Some(self.made(place::make_file(self.current.as_fd(), name))?)
        };
        let hash = self.copy(content.as_deref(), attr.size, file.as_ref())?;
        if let Some(file) = file {
            self.made_with(place::finish(file.as_fd(), attr, xattrs))?;
            self.summary.files += 1;
        }
        Ok(hash)
    }

    /// Copies data, leaves holes, and returns the hash of all.
    fn copy(
        &mut self,
        content: Option<&dyn BackingFile>,
        size: u64,
        file: Option<&File>,
    ) -> Result<String, ExportError> {
        if let Some(file) = file {
            let grown = file.set_len(size);
            grown.map_err(ExportError::write("set the length of", self.name()))?;
        }
        let mut hasher = self.manifest.is_some().then(Hasher::new);
        let mut at = 0;
        while at < size {
            let (from, to) = self.data_after(content, at, size)?;
            hash_zeros(hasher.as_mut(), from - at);
            self.copy_range(content, from, to, (file, hasher.as_mut()))?;
            at = to;
        }
        Ok(hasher.map_or_else(String::new, |hasher| hex(hasher.finalize())))
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
        mut at: u64,
        to: u64,
        (file, mut hasher): (Option<&File>, Option<&mut Hasher>),
    ) -> Result<(), ExportError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let (Some(content), true) = (content, at < to) {
            let wanted = usize::try_from(to - at).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
            let piece = buffer.get_mut(..wanted).unwrap_or_default();
            let read = content.read_at(at, piece);
            let read =
                self.read(read.map_err(|error| StoreError::disk("read", "content")(error).into()))?;
            // Only a file that shrinks under our eyes ends early: what is missing reads as zeros.
            piece.get_mut(read..).unwrap_or_default().fill(0);
            if let Some(file) = file {
                let written = file.write_all_at(piece, at);
                written.map_err(ExportError::write("write", self.name()))?;
                self.summary.bytes += piece.len() as u64;
            }
            if let Some(hasher) = &mut hasher {
                hasher.update(piece);
            }
            at += piece.len() as u64;
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Gives the root its attributes and puts all on stable storage.
    fn finish(mut self, dest: &Path) -> Result<ExportSummary, ExportError> {
        let name = escaped(dest.as_os_str().as_encoded_bytes());
        let removed = self.links.finish();
        removed.map_err(|failure| refused(failure, name.clone()))?;
        if let Some(root) = self.levels.pop() {
            let finished = place::finish(self.current.as_fd(), &root.attr, &root.xattrs);
            self.made_with(finished)?;
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
