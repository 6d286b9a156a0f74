//! A virtual machine that uses NFS at the cluster address: by its disk, and by the NFS client of its kernel. It boots a Debian
//! kernel in software, and its only program (`guest/init.rs`) writes records.
//!
//! Invariant: the virtual machine is gone when [`Guest`] is dropped, or when the test is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::network::{ADDRESS, GuestPort, Host, Lan};
use crate::record::{NAMES_KEPT, PLACES, RECORD_BYTES, WRITERS, describe, fill, offset};
use crate::server_space::EXPORT;
use lockstep_testbed::await_that;

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
/// Lines of acknowledged records that a move of the service must not stop: of all workers, and of each of them.
const ENOUGH_LINES: usize = 40;
const ENOUGH_OF_EACH: usize = 3;

/// The disk, the network and the mounts of a virtual machine.
pub struct Equipment {
    /// Whether it has a disk at the cluster address.
    pub has_disk: bool,
    /// Its place in the network.
    pub port: GuestPort,
    /// The names and the options of its mounts of the cluster address.
    pub mounts: Vec<(String, String)>,
}

/// A virtual machine.
pub struct Guest {
    process: Child,
    input: ChildStdin,
    console: Arc<Mutex<Vec<String>>>,
    workers: Vec<String>,
}

impl Guest {
    /// Makes the disk, and starts the virtual machine beside the client. `directory` is empty.
    pub fn start(lan: &Lan, directory: &Path, equipment: &Equipment) -> Self {
        let url = format!("nfs://{ADDRESS}{EXPORT}/{DISK}");
        if equipment.has_disk {
            let mut command = lan.of(Host::Client).command();
            let command = command.args(["qemu-img", "create", "-f", "raw", &url, "4M"]);
            let made = command.output().unwrap();
            assert!(made.status.success(), "{made:?}");
        }
        let mut process = machine(lan, directory, &url, equipment).spawn().unwrap();
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
            workers: equipment.workers(),
        };
        guest.await_progress();
        guest
    }

    /// Waits until every worker has saved further records.
    pub fn await_progress(&mut self) {
        let begin = self.console.lock().len();
        await_that("the guest", || {
            self.assert_well();
            let lines = self.console.lock();
            let new = |worker: &String| {
                let start = format!("ack {worker} ");
                let new = lines[begin..].iter();
                new.filter(|line| line.starts_with(&start)).count()
            };
            lines.len() >= begin + ENOUGH_LINES
                && self.workers.iter().all(|it| new(it) >= ENOUGH_OF_EACH)
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

    /// Ends the work, and returns the number of the last record of each worker.
    pub fn end(mut self) -> Vec<(String, u64)> {
        writeln!(self.input, "stop").unwrap();
        await_that("the end of the guest", || {
            self.assert_well();
            self.process.try_wait().unwrap().is_some()
        });
        await_that("the last line", || {
            self.console.lock().iter().any(|line| line == "done")
        });
        let lines = self.console.lock();
        let last = |worker: &String| {
            let start = format!("end {worker} ");
            let line = lines.iter().find_map(|line| line.strip_prefix(&start));
            (
                worker.clone(),
                line.expect("the last record").parse().unwrap(),
            )
        };
        self.workers.iter().map(last).collect()
    }

    /// The number of lines of the console.
    pub fn lines(&self) -> usize {
        self.console.lock().len()
    }

    /// The longest pause of each worker in the console, from this line on.
    pub fn pauses_since(&self, line: usize) -> BTreeMap<String, Duration> {
        let mut pauses = BTreeMap::new();
        for line in &self.console.lock()[line..] {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["pause", worker, _, took] = words[..] {
                let longest: &mut Duration = pauses.entry(worker.to_owned()).or_default();
                *longest = (*longest).max(Duration::from_millis(took.parse().unwrap()));
            }
        }
        pauses
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Equipment {
    /// The names of all workers.
    fn workers(&self) -> Vec<String> {
        let writers = if self.has_disk { WRITERS } else { 0 };
        let programs = self
            .mounts
            .iter()
            .flat_map(|(mount, _)| ["data", "names"].map(|program| format!("{mount}.{program}")));
        (0..writers)
            .map(|writer| writer.to_string())
            .chain(programs)
            .collect()
    }

    /// The command line of the kernel, whose unknown words become variables of the program.
    fn command_line(&self) -> String {
        let own = self.port.ip();
        let mut line = format!(
            "console=ttyS0 quiet panic=-1 OWN_ADDRESS={own} SERVER={ADDRESS} EXPORT={EXPORT}"
        );
        if self.has_disk {
            line += " HAS_DISK=1";
        }
        for (name, options) in &self.mounts {
            write!(line, " MOUNT_{name}={options}").unwrap();
        }
        line
    }
}

/// The command that starts a virtual machine beside the client.
fn machine(lan: &Lan, directory: &Path, url: &str, equipment: &Equipment) -> Command {
    let mut command = lan.of(Host::Client).command();
    let (port, own) = (equipment.port.name(), equipment.port.hardware_address());
    command
        .env("LD_PRELOAD", keep_alive(directory))
        .args(["qemu-system-x86_64", "-accel", "tcg", "-m", "192"])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-serial", "stdio", "-append", &equipment.command_line()])
        .arg("-kernel")
        .arg(Path::new(KERNEL).join("vmlinuz"))
        .arg("-initrd")
        .arg(boot_archive(directory))
        .arg("-netdev")
        .arg(format!("tap,id=lan,ifname={port},script=no,downscript=no"))
        .args([
            "-device",
            &format!("virtio-net-pci,netdev=lan,mac={own},romfile="),
        ]);
    if equipment.has_disk {
        let drive = format!("file={url},format=raw,if=virtio,cache=none");
        command.args(["-drive", &drive]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Checks, in a mount of the datastore, each record on the disk and each saved record and name of the programs of the mounts.
pub fn assert_saved(mount: &Path, equipment: &Equipment, last: &[(String, u64)]) {
    let last_of = |worker: &str| {
        let found = last.iter().find(|(it, _)| it == worker);
        found.expect(worker).1
    };
    if equipment.has_disk {
        for writer in 0..WRITERS {
            assert_records(&mount.join(DISK), writer, last_of(&writer.to_string()));
        }
    }
    for (writer, (name, _)) in (0..).zip(&equipment.mounts) {
        let directory = mount.join(name);
        assert_records(
            &directory.join("data"),
            writer,
            last_of(&format!("{name}.data")),
        );
        assert_names(&directory, writer, last_of(&format!("{name}.names")));
    }
}

fn assert_records(path: &Path, writer: u64, last: u64) {
    let disk = File::open(path).unwrap();
    for number in last.saturating_sub(PLACES - 1).max(1)..=last {
        assert_record(&disk, offset(writer, number), writer, number);
    }
}

fn assert_record(file: &File, place: u64, writer: u64, number: u64) {
    let (mut found, mut expected) = ([0; RECORD_BYTES], [0; RECORD_BYTES]);
    file.read_exact_at(&mut found, place).unwrap();
    fill(&mut expected, writer, number);
    assert!(found == expected, "{}", describe(&found, writer, number));
}

/// Checks the names that the program of a mount has made, and the lines that it has appended.
fn assert_names(directory: &Path, writer: u64, last: u64) {
    let kept = last.saturating_sub(NAMES_KEPT - 1).max(1)..=last;
    let names = kept.clone().map(|number| format!("kept-{number}"));
    let others = ["data", "lock", "log"].map(str::to_owned);
    let expected: BTreeSet<String> = names.chain(others).collect();
    let found = fs::read_dir(directory).unwrap();
    let found = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(found.collect::<BTreeSet<_>>(), expected);
    for number in kept {
        let file = File::open(directory.join(format!("kept-{number}"))).unwrap();
        assert_record(&file, 0, writer, number);
    }
    let log = fs::read_to_string(directory.join("log")).unwrap();
    let lines = log.lines().map(|line| line.parse::<u64>().unwrap());
    assert!(lines.eq(1..=last), "appended lines: {log}");
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
