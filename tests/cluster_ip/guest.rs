//! A virtual machine whose disk lies on NFS: it boots a Debian kernel in software, and its only program (`guest/init.rs`)
//! writes records.
//!
//! Invariant: the virtual machine is gone when [`Guest`] is dropped, or when the test is killed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use crate::await_that;
use crate::network::{ADDRESS, Host, Lan};
use crate::record::{PLACES, RECORD_BYTES, WRITERS, describe, fill, offset};
use crate::server_space::EXPORT;

/// Kernel and modules, from `scripts/setup test`.
const KERNEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/guest");
const INIT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/cluster_ip/guest/init.rs"
);
const KEEP_ALIVE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/cluster_ip/guest/keep_alive.rs"
);
/// Name of the disk in the export.
const DISK: &str = "disk";
/// Lines of acknowledged records that a move of the service must not stop.
const ENOUGH_LINES: usize = 40;

/// A virtual machine.
pub struct Guest {
    process: Child,
    input: ChildStdin,
    console: Arc<Mutex<Vec<String>>>,
}

impl Guest {
    /// Makes the disk at the cluster address, and starts the virtual machine beside the client. `directory` does not exist.
    pub fn start(lan: &Lan, directory: &Path) -> Self {
        fs::create_dir(directory).unwrap();
        let (archive, library) = (boot_archive(directory), keep_alive(directory));
        let url = format!("nfs://{ADDRESS}{EXPORT}/{DISK}");
        let client = || lan.of(Host::Client).command();
        let made = client()
            .args(["qemu-img", "create", "-f", "raw", &url, "4M"])
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut command = client();
        command
            .env("LD_PRELOAD", library)
            .args(["qemu-system-x86_64", "-accel", "tcg", "-m", "192"])
            .args([
                "-nodefaults",
                "-display",
                "none",
                "-no-reboot",
                "-serial",
                "stdio",
            ])
            .args(["-append", "console=ttyS0 quiet panic=-1", "-kernel"])
            .arg(Path::new(KERNEL).join("vmlinuz"))
            .arg("-initrd")
            .arg(archive)
            .arg("-drive")
            .arg(format!("file={url},format=raw,if=virtio,cache=none"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let console = Arc::<Mutex<Vec<String>>>::default();
        let (output, lines) = (process.stdout.take().unwrap(), Arc::clone(&console));
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                lines.lock().push(line);
            }
        });
        let mut guest = Self {
            input: process.stdin.take().unwrap(),
            process,
            console,
        };
        guest.await_progress();
        guest
    }

    /// Waits until every writer has saved further records.
    pub fn await_progress(&mut self) {
        let begin = self.console.lock().len();
        await_that("the guest", || {
            self.assert_well();
            let lines = self.console.lock();
            let has_gone_on = |writer| {
                let start = format!("ack {writer} ");
                lines[begin..].iter().any(|line| line.starts_with(&start))
            };
            lines.len() >= begin + ENOUGH_LINES && (0..WRITERS).all(has_gone_on)
        });
    }

    fn assert_well(&mut self) {
        let lines = self.console.lock();
        let is_bad = |line: &&String| {
            let kernels = ["I/O error", "Kernel panic", "blocked for more than"];
            line.contains("ERROR") || kernels.iter().any(|what| line.contains(what))
        };
        if let Some(line) = lines.iter().find(is_bad) {
            let tail = lines.len().saturating_sub(20);
            panic!("the guest says: {line}\n{}", lines[tail..].join("\n"));
        }
        let ended = self.process.try_wait().unwrap();
        let is_done = lines.iter().any(|line| line == "done");
        assert!(
            ended.is_none() || is_done,
            "{ended:?}\n{}",
            lines.join("\n")
        );
    }

    /// Ends the work, and returns the number of the last record of each writer.
    pub fn end(mut self) -> Vec<u64> {
        writeln!(self.input, "stop").unwrap();
        await_that("the end of the guest", || {
            self.assert_well();
            self.process.try_wait().unwrap().is_some()
        });
        await_that("the last line", || {
            self.console.lock().iter().any(|line| line == "done")
        });
        let lines = self.console.lock();
        let last = |writer: u64| {
            let start = format!("end {writer} ");
            let line = lines.iter().find_map(|line| line.strip_prefix(&start));
            line.expect("the last record").parse().unwrap()
        };
        (0..WRITERS).map(last).collect()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Checks each record on the disk, in a mount of the datastore.
pub fn assert_disk(mount: &Path, last: &[u64]) {
    let disk = File::open(mount.join(DISK)).unwrap();
    let (mut found, mut expected) = ([0; RECORD_BYTES], [0; RECORD_BYTES]);
    for (writer, last) in (0..).zip(last) {
        for number in last.saturating_sub(PLACES - 1).max(1)..=*last {
            disk.read_exact_at(&mut found, offset(writer, number))
                .unwrap();
            fill(&mut expected, writer, number);
            assert!(found == expected, "{}", describe(&found, writer, number));
        }
    }
}

/// Compiles a program or a library.
fn build(source: &str, target: &Path, settings: &[&str], kind: &str) {
    let mut command = Command::new("rustc");
    command.args(["--edition", "2024", "-O", "--crate-type", kind]);
    for setting in settings.iter().chain(&["strip=symbols", "panic=abort"]) {
        command.args(["-C", setting]);
    }
    let built = command.arg("-o").arg(target).arg(source).output().unwrap();
    assert!(built.status.success(), "{built:?}");
}

/// The library that gives the connections of QEMU keep-alives: otherwise QEMU, when it only waits for an answer, would never
/// hear that the server is gone.
fn keep_alive(dir: &Path) -> PathBuf {
    let library = dir.join("libkeep_alive.so");
    build(KEEP_ALIVE, &library, &[], "cdylib");
    library
}

/// Makes the first file system of the guest, in a directory: its program, and the modules of its kernel.
fn boot_archive(dir: &Path) -> PathBuf {
    assert!(
        Path::new(KERNEL).join("vmlinuz").exists(),
        "no kernel for the guest in {KERNEL}: run scripts/setup test"
    );
    let init = dir.join("init");
    // Without libraries: there is no other file in the guest.
    build(INIT, &init, &["target-feature=+crt-static"], "bin");
    let mut archive = Vec::new();
    add(&mut archive, "dev", 0o40_755, &[]);
    add(&mut archive, "init", 0o100_755, &fs::read(init).unwrap());
    for entry in fs::read_dir(KERNEL).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.extension().is_some_and(|kind| kind == "ko") {
            let name = entry.file_name().into_string().unwrap();
            add(&mut archive, &name, 0o100_644, &fs::read(path).unwrap());
        }
    }
    add(&mut archive, "TRAILER!!!", 0, &[]);
    let path = dir.join("archive");
    fs::write(&path, archive).unwrap();
    path
}

/// Adds a file to an archive in the format `newc` of cpio.
fn add(archive: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) {
    let name_bytes = name.len() + 1;
    let inode = archive.len() + 1;
    let fields = [
        inode,
        mode as usize,
        0,
        0,
        1,
        0,
        content.len(),
        0,
        0,
        0,
        0,
        name_bytes,
        0,
    ];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08x}").bytes());
    }
    for part in [&[name.as_bytes(), &[0]].concat(), content] {
        archive.extend(part);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
}
