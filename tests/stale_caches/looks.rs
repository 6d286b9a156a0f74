//! The view of a program on a few files of a mount whose node may answer nothing: each look is a process of its own, which waits
//! while the mount does.
//!
//! Invariant: no look is left when a [`Files`] is dropped.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_testbed::await_that;
use memmap2::{Advice, MmapMut};
use tempfile::TempDir;

/// Names the file that the child maps.
const FILE: &str = "LOCKSTEP_TEST_FILE";
/// Names the directory in which the child and the test signal their progress.
const SIGNALS: &str = "LOCKSTEP_TEST_SIGNALS";

const PAGE: usize = 4096;
/// Pages of the mapped file.
const PAGES: usize = 64;
/// The page to which the child stores, behind some clean pages and before others.
const STORED: usize = 21;
/// Two pages that no program stores to.
const CLEAN: [usize; 2] = [3, 50];

/// How long a look may wait for an answer. A node that answers old bytes does so at once.
const WAIT: Duration = Duration::from_secs(1);

/// The answer to a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    Old,
    New,
    /// The look waits.
    Nothing,
}

/// The files of one mount, and a child that has mapped one of them.
pub struct Files {
    mount: PathBuf,
    signals: TempDir,
    child: Child,
    looks: Vec<Child>,
    round: u32,
}

impl Files {
    /// Makes the files, and has the kernel know them. The child stores to a page of its mapping if `has_dirty_page`.
    pub fn make(mount: &Path, has_dirty_page: bool) -> Self {
        fs::write(mount.join("attributes"), "old").unwrap();
        fs::write(mount.join("name"), "").unwrap();
        fs::write(mount.join("mapped"), vec![b'o'; PAGES * PAGE]).unwrap();
        assert!(fs::metadata(mount.join("attributes")).unwrap().len() == 3);
        assert!(fs::metadata(mount.join("name")).is_ok());
        assert!(fs::metadata(mount.join("absent")).is_err());
        let signals = tempfile::Builder::new().prefix("lsl.").tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "mapping_child", "--ignored", "--nocapture"])
            .env(FILE, mount.join("mapped"))
            .env(SIGNALS, signals.path())
            .stdout(Stdio::null());
        let files = Self {
            mount: mount.to_owned(),
            child: child.spawn().unwrap(),
            signals,
            looks: Vec::new(),
            round: 0,
        };
        files.await_signal("mapped");
        if has_dirty_page {
            files.signal("store");
            files.await_signal("stored");
        }
        files
    }

    fn signal(&self, name: &str) {
        File::create(self.signals.path().join(name)).unwrap();
    }

    fn await_signal(&self, name: &str) {
        await_that(name, || self.signals.path().join(name).exists());
    }

    /// Looks at everything, and returns what has shown something.
    pub fn look(&mut self) -> Vec<(&'static str, Seen)> {
        let mut size = self.begin("stat", &["-c", "%s"], "attributes");
        let mut name = self.begin("stat", &["-c", "here"], "name");
        let mut absent = self.begin("stat", &["-c", "here"], "absent");
        self.round += 1;
        self.signal(&format!("look{}", self.round));
        let end = Instant::now() + WAIT;
        while Instant::now() < end {
            std::thread::sleep(WAIT / 50);
        }
        let is_old = |child: &mut Child, is_old: &dyn Fn(&str) -> bool| {
            let Some(_status) = child.try_wait().unwrap() else {
                return Seen::Nothing;
            };
            let output = std::io::read_to_string(child.stdout.as_mut().unwrap()).unwrap();
            if is_old(output.trim()) {
                Seen::Old
            } else {
                Seen::New
            }
        };
        let seen = vec![
            ("attributes", is_old(&mut size, &|text| text == "3")),
            ("a name", is_old(&mut name, &|text| text == "here")),
            ("an absent name", is_old(&mut absent, &str::is_empty)),
            ("pages", self.pages()),
        ];
        self.looks.extend([size, name, absent]);
        seen
    }

    fn begin(&self, program: &str, arguments: &[&str], name: &str) -> Child {
        Command::new(program)
            .args(arguments)
            .arg(self.mount.join(name))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// The clean pages, as the child has seen them.
    fn pages(&self) -> Seen {
        let seen = |page| {
            let seen = self
                .signals
                .path()
                .join(format!("seen{}.{page}", self.round));
            fs::read(seen).ok()
        };
        let seen: Vec<_> = CLEAN.iter().filter_map(|page| seen(*page)).collect();
        if seen.iter().any(|byte| byte == b"o") {
            Seen::Old
        } else if seen.len() == CLEAN.len() {
            Seen::New
        } else {
            Seen::Nothing
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for child in self.looks.iter_mut().chain([&mut self.child]) {
            let _ended = child.kill();
        }
        // A look that waits ends with the mount, which the test ends.
    }
}

/// Changes everything on the other mount. Returns when the changes are acknowledged.
pub fn change(mount: &Path) {
    fs::write(mount.join("attributes"), "new bytes").unwrap();
    fs::remove_file(mount.join("name")).unwrap();
    fs::write(mount.join("absent"), "").unwrap();
    let mapped = OpenOptions::new().write(true).open(mount.join("mapped"));
    let mapped = mapped.unwrap();
    for page in CLEAN {
        mapped
            .write_all_at(&[b'n'; PAGE], (page * PAGE) as u64)
            .unwrap();
    }
}

/// The side of the child; returns at once outside a child.
pub fn run_child() {
    let (Some(path), Some(signals)) = (std::env::var_os(FILE), std::env::var_os(SIGNALS)) else {
        return;
    };
    let signals = PathBuf::from(signals);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(path).unwrap();
    // SAFETY: no process truncates the file while it is mapped.
    let mut mapping = unsafe { MmapMut::map_mut(&file) }.unwrap();
    mapping.advise(Advice::Random).unwrap();
    assert!(mapping.iter().step_by(PAGE).all(|byte| *byte == b'o'));
    File::create(signals.join("mapped")).unwrap();
    let mut round = 1;
    loop {
        std::thread::sleep(Duration::from_millis(2));
        if signals.join("store").exists() {
            mapping[STORED * PAGE] = b's';
            fs::rename(signals.join("store"), signals.join("stored")).unwrap();
        }
        if signals.join(format!("look{round}")).exists() {
            std::thread::scope(|scope| {
                for page in CLEAN {
                    let (seen, byte) = (format!("seen{round}.{page}"), &mapping[page * PAGE]);
                    let signals = &signals;
                    scope.spawn(move || {
                        // SAFETY: the byte is mapped. Another process changes it, so it is read where it lies.
                        let byte = unsafe { std::ptr::read_volatile(byte) };
                        let part = signals.join(format!("part{page}"));
                        fs::write(&part, [byte]).unwrap();
                        fs::rename(part, signals.join(seen)).unwrap();
                    });
                }
            });
            round += 1;
        }
        if !signals.exists() {
            return;
        }
    }
}
