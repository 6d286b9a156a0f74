//! The only program of a virtual machine: it writes numbered records to its disk, saves each of them, and reads them
//! back from the disk.
//!
//! The program is the first process of a Linux kernel. It prints to the console: `ready`, `ack WRITER NUMBER` after some
//! of the saved records, `end WRITER NUMBER` for the last record of each writer, and `done`. A line that begins with
//! `ERROR` says what went wrong. A line of input ends the work.

mod record;

use std::ffi::{CString, c_char, c_int, c_long, c_ulong, c_void};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use record::{PLACES, RECORD_BYTES, WRITERS, describe, fill, offset};

const DISK: &str = "/dev/vda";
const O_DIRECT: i32 = 0o40000;
/// Of the x86-64.
const FINIT_MODULE: c_long = 313;
const POWER_OFF: c_int = 0x4321_fedc;
/// In the order in which they depend on each other.
const MODULES: [&str; 6] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_blk",
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

fn work() -> io::Result<()> {
    prepare()?;
    println!("ready");
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| std::thread::spawn(move || write(writer)))
        .collect();
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    STOP.store(true, Ordering::Relaxed);
    for (writer, thread) in writers.into_iter().enumerate() {
        let last = thread.join().map_err(|_| io::Error::other("a panic"))??;
        println!("end {writer} {last}");
    }
    println!("done");
    Ok(())
}

fn prepare() -> io::Result<()> {
    let text = |text: &str| CString::new(text).unwrap();
    let (devices, target) = (text("devtmpfs"), text("/dev"));
    // SAFETY: the strings end with zero, and there are no data.
    let mounted = unsafe {
        mount(
            devices.as_ptr(),
            target.as_ptr(),
            devices.as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    if mounted != 0 {
        return Err(io::Error::last_os_error());
    }
    let no_options = text("");
    for module in MODULES {
        let file = File::open(format!("/{module}.ko"))?;
        // SAFETY: the descriptor is open, and the string ends with zero.
        let loaded = unsafe { syscall(FINIT_MODULE, file.as_raw_fd(), no_options.as_ptr(), 0) };
        if loaded != 0 {
            let error = io::Error::last_os_error();
            return Err(io::Error::other(format!("cannot load {module}: {error}")));
        }
    }
    while !std::path::Path::new(DISK).exists() {
        std::thread::sleep(Duration::from_millis(10));
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
    while !STOP.load(Ordering::Relaxed) {
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
