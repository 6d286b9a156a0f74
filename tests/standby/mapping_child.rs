//! A child process that maps a file of the mount, and signals between the child and the test.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use memmap2::MmapMut;

use crate::gated::await_true;
use crate::mounted::Fixture;

/// Opens a file to read and write.
pub fn read_write(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).open(path).unwrap()
}

/// Names the file that the child maps.
const FILE: &str = "LOCKSTEP_TEST_FILE";
/// Names the directory in which the child and its parent signal their progress.
const SIGNALS: &str = "LOCKSTEP_TEST_SIGNALS";

/// A child with a mapping of the file `f` of one page of `a`.
pub struct MappingChild {
    process: Child,
    /// Signals in both directions.
    pub signals: Signals,
    _directory: tempfile::TempDir,
}

impl MappingChild {
    /// Starts the ignored test `name`.
    pub fn start(name: &str, mount: &Fixture) -> Self {
        Self::start_after(name, mount, || {})
    }

    /// The same. `prepare` runs when the file is made.
    pub fn start_after(name: &str, mount: &Fixture, prepare: impl FnOnce()) -> Self {
        let path = mount.path("f");
        fs::write(&path, [b'a'; 4096]).unwrap();
        prepare();
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--ignored", "--nocapture"]);
        command.env(FILE, &path).env(SIGNALS, directory.path());
        let process = command.stdout(Stdio::inherit()).spawn().unwrap();
        Self {
            process,
            signals: Signals(directory.path().to_owned()),
            _directory: directory,
        }
    }

    /// Waits for the end of the child.
    pub fn expect_success(mut self) {
        let mut status = None;
        await_true(|| {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success());
    }
}

/// A directory in which parent and child signal their progress.
pub struct Signals(PathBuf);

impl Signals {
    pub fn give(&self, name: &str) {
        File::create(self.0.join(name)).unwrap();
    }

    pub fn is_given(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    pub fn await_one(&self, name: &str) {
        await_true(|| self.is_given(name));
    }
}

/// The path of the file that a child maps; `None` outside a child.
fn child_file() -> Option<PathBuf> {
    std::env::var_os(FILE).map(PathBuf::from)
}

/// The child's side: a second file, `g`, and a mapping of it; `None` outside a child.
pub fn second() -> Option<(File, MmapMut)> {
    let file = read_write(&child_file()?.with_file_name("g"));
    // SAFETY: no process truncates the file while it is mapped.
    let mapping = unsafe { MmapMut::map_mut(&file) }.unwrap();
    Some((file, mapping))
}

/// The child's side: the file and the signals; `None` outside a child.
pub fn given() -> Option<(File, Signals)> {
    let path = child_file()?;
    let signals = Signals(PathBuf::from(std::env::var_os(SIGNALS)?));
    Some((read_write(&path), signals))
}

/// The mapping, in which the child has stored `m` at 100, and the signals.
pub fn stored() -> Option<(MmapMut, Signals)> {
    let (file, signals) = given()?;
    // SAFETY: no process truncates the file while it is mapped.
    let mut shared = unsafe { MmapMut::map_mut(&file) }.unwrap();
    shared[100] = b'm';
    signals.give("stored");
    Some((shared, signals))
}
