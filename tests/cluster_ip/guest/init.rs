//! The only program of a virtual machine: it writes numbered records to its disk, saves each of them, and reads them
//! back from the disk. If the kernel is given mounts, the program uses them, too (`kernel_client`).
//!
//! The program is the first process of a Linux kernel. It prints to the console: `ready`, `ack WORKER NUMBER` after some
//! of the saved records, `end WORKER NUMBER` for the last record of each worker, and `done`. A writer of the disk is a worker
//! with its number as its name. A line that begins with `ERROR` gives the fault. A line of input ends the work.

mod kernel_client;
mod record;

use std::ffi::{CString, c_char, c_int, c_long, c_ulong, c_void};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use record::{PLACES, RECORD_BYTES, WRITERS, describe, fill, offset};

const DISK: &str = "/dev/vda";
const O_DIRECT: i32 = 0o40000;
/// Of the x86-64.
const FINIT_MODULE: c_long = 313;
const POWER_OFF: c_int = 0x4321_fedc;
/// In the order in which they depend on each other.
const MODULES: [&str; 19] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_blk",
    "failover",
    "net_failover",
    "virtio_net",
    "sunrpc",
    "netfs",
    "fscache",
    "grace",
    "lockd",
    "nfs",
    "nfs_acl",
    "nfsv3",
    "dns_resolver",
    "nfsv4",
];
/// Records between two lines of the console.
const ACK_EVERY: u64 = 8;
/// Records between two checks of everything.
const CHECK_EVERY: u64 = 64;

unsafe extern "C" {
    fn mount(
        source: *const c_char,
        target: *const c_char,
        kind: *const c_char,
        flags: c_ulong,
        data: *const c_void,
    ) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn reboot(how: c_int) -> c_int;
}

static STOP: AtomicBool = AtomicBool::new(false);

/// Memory as the disk wants it.
#[repr(align(4096))]
struct Aligned([u8; RECORD_BYTES]);

fn main() {
    if let Err(error) = work() {
        println!("ERROR {error}");
    }
    // SAFETY: every record is saved.
    unsafe { reboot(POWER_OFF) };
}

/// A thread that works until the end, and returns the number of its last record.
type Worker = (String, JoinHandle<io::Result<u64>>);

fn work() -> io::Result<()> {
    prepare()?;
    let workers = start_workers()?;
    println!("ready");
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    STOP.store(true, Ordering::Relaxed);
    for (name, thread) in workers {
        let last = thread.join().map_err(|_| io::Error::other("a panic"))??;
        println!("end {name} {last}");
    }
    println!("done");
    Ok(())
}

fn start_workers() -> io::Result<Vec<Worker>> {
    let mut workers: Vec<Worker> = Vec::new();
    if has_disk() {
        let disk = |writer: u64| (writer.to_string(), thread::spawn(move || write(writer)));
        workers.extend((0..WRITERS).map(disk));
    }
    if let Some(settings) = kernel_client::Settings::given() {
        for program in settings.start()? {
            workers.push((program.name.clone(), thread::spawn(move || program.work())));
        }
    }
    Ok(workers)
}

/// Whether the command line of the kernel says that there is a disk.
fn has_disk() -> bool {
    std::env::var_os("HAS_DISK").is_some()
}

/// Whether the work is over.
fn is_over() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Mounts a file system.
fn mount_file_system(kind: &str, source: &str, target: &Path, options: &str) -> io::Result<()> {
    let text = |text: &str| CString::new(text).unwrap();
    let (kind, source, data) = (text(kind), text(source), text(options));
    let target = text(target.to_str().unwrap());
    // SAFETY: the strings end with zero.
    let mounted = unsafe {
        mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            0,
            data.as_ptr().cast(),
        )
    };
    match mounted {
        0 => Ok(()),
        _ => Err(error_of(&format!("mount with {options}"))),
    }
}

fn error_of(what: &str) -> io::Error {
    let error = io::Error::last_os_error();
    io::Error::other(format!("{what}: {error}"))
}

fn prepare() -> io::Result<()> {
    mount_file_system("devtmpfs", "none", Path::new("/dev"), "")?;
    for module in MODULES {
        let file = File::open(format!("/{module}.ko"))?;
        // SAFETY: the descriptor is open, and the string ends with zero.
        let loaded = unsafe { syscall(FINIT_MODULE, file.as_raw_fd(), c"".as_ptr(), 0) };
        if loaded != 0 {
            return Err(error_of(&format!("cannot load {module}")));
        }
    }
    while has_disk() && !Path::new(DISK).exists() {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Writes records until the end of the work, and returns the number of the last one.
fn write(writer: u64) -> io::Result<u64> {
    let outcome = write_records(writer);
    if let Err(error) = &outcome {
        println!("ERROR writer {writer}: {error}");
    }
    outcome
}

fn write_records(writer: u64) -> io::Result<u64> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(O_DIRECT);
    let disk = options.open(DISK)?;
    let mut record = Box::new(Aligned([0; RECORD_BYTES]));
    let mut number = 0;
    while !is_over() {
        number += 1;
        fill(&mut record.0, writer, number);
        disk.write_all_at(&record.0, offset(writer, number))?;
        disk.sync_data()?;
        if number % ACK_EVERY == 0 {
            println!("ack {writer} {number}");
        }
        if number % CHECK_EVERY == 0 {
            check(&disk, writer, number)?;
        }
    }
    check(&disk, writer, number)?;
    Ok(number)
}

/// Reads the last record of each place.
fn check(disk: &File, writer: u64, last: u64) -> io::Result<()> {
    let mut found = Box::new(Aligned([0; RECORD_BYTES]));
    let mut expected = [0; RECORD_BYTES];
    for number in last.saturating_sub(PLACES - 1).max(1)..=last {
        disk.read_exact_at(&mut found.0, offset(writer, number))?;
        fill(&mut expected, writer, number);
        if found.0 != expected {
            return Err(io::Error::other(describe(&found.0, writer, number)));
        }
    }
    Ok(())
}
