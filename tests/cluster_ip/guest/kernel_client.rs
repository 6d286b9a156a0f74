//! The NFS client of the kernel of a virtual machine: mounts, and programs that use them.
//!
//! In each mount one program writes and reads records in a file that stays open, and another one makes, renames and removes
//! names, and appends to a file. The first file is locked all the time, and the second program locks a part of a file for each
//! append. A record is saved before its number is printed. A lock that the server has lost is an error of the next write.
//!
//! Each program prints `ack MOUNT.PROGRAM NUMBER` and, at the end, `end MOUNT.PROGRAM NUMBER`. An operation that takes long is
//! `pause MOUNT.PROGRAM OPERATION MILLISECONDS`. `again MOUNT.PROGRAM OPERATION` is an operation that was carried out before the
//! server had to be asked again: the answer is then that the name is there, or gone.

use std::ffi::{c_int, c_short, c_ulong};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::record::{NAMES_KEPT, PLACES, RECORD_BYTES, describe, fill, offset};
use crate::{Aligned, O_DIRECT, is_over, mount_file_system};

/// Of Linux.
const O_SYNC: i32 = 0o4_010_000;
const SIOCSIFFLAGS: c_ulong = 0x8914;
const SIOCSIFADDR: c_ulong = 0x8916;
const SIOCSIFNETMASK: c_ulong = 0x891c;
const IFF_UP: u8 = 1;
const AF_INET: u8 = 2;
const F_SETLKW: c_int = 7;
const F_WRLCK: c_short = 1;
const F_UNLCK: c_short = 2;
/// The netmask of the network.
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
/// The shortest operation that is called a pause.
const PAUSE: Duration = Duration::from_millis(300);
/// Records of a file that stays open between two lines of the console.
const ACK_EVERY: u64 = 8;
/// Records between two checks of everything.
const CHECK_EVERY: u64 = 64;

unsafe extern "C" {
    fn ioctl(descriptor: c_int, request: c_ulong, ...) -> c_int;
    fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
    fn sethostname(name: *const u8, bytes: usize) -> c_int;
}

/// A part of a file that is to be locked, as the C library has it on the x86-64.
#[repr(C)]
struct Lock {
    kind: c_short,
    whence: c_short,
    start: i64,
    bytes: i64,
    owner: c_int,
}

/// The settings on the command line of the kernel.
pub struct Settings {
    address: Ipv4Addr,
    server: Ipv4Addr,
    export: String,
    /// The names and the options of the mounts.
    mounts: Vec<(String, String)>,
}

impl Settings {
    /// The settings, if there is a mount.
    pub fn given() -> Option<Self> {
        let one = |name: &str| std::env::var(name).ok();
        let name =
            |(key, value): (String, String)| Some((key.strip_prefix("MOUNT_")?.to_owned(), value));
        Some(Self {
            address: one("OWN_ADDRESS")?.parse().ok()?,
            server: one("SERVER")?.parse().ok()?,
            export: one("EXPORT")?,
            mounts: std::env::vars().filter_map(name).collect(),
        })
    }

    /// Begins the network, mounts, and begins the programs.
    pub fn start(&self) -> io::Result<Vec<Program>> {
        start_network(self.address)?;
        let mut programs = Vec::new();
        for (writer, (name, options)) in self.mounts.iter().enumerate() {
            let place = PathBuf::from(format!("/{name}"));
            fs::create_dir(&place)?;
            let options = format!("{options},addr={},clientaddr={}", self.server, self.address);
            let source = format!("{}:{}", self.server, self.export);
            mount_file_system("nfs", &source, &place, &options)?;
            programs.extend(Program::both(writer as u64, name, &place)?);
        }
        Ok(programs)
    }
}

/// Gives `eth0` its address.
fn start_network(address: Ipv4Addr) -> io::Result<()> {
    let name = format!("guest-{address}");
    // SAFETY: the name has this length.
    unsafe { sethostname(name.as_ptr(), name.len()) };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let family_and_port = [AF_INET, 0, 0, 0];
    let of_address = |ip: Ipv4Addr| [family_and_port, ip.octets()].concat();
    for (request, value) in [
        (SIOCSIFADDR, of_address(address)),
        (SIOCSIFNETMASK, of_address(MASK)),
        (SIOCSIFFLAGS, vec![IFF_UP, 0]),
    ] {
        let mut interface = [0; 40];
        interface[..4].copy_from_slice(b"eth0");
        interface[16..16 + value.len()].copy_from_slice(&value);
        // SAFETY: the structure has its whole length.
        if unsafe { ioctl(socket.as_raw_fd(), request, interface.as_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A program of a mount.
pub struct Program {
    /// The mount and the program.
    pub name: String,
    /// The number of the mount, in each record.
    writer: u64,
    directory: PathBuf,
    does: fn(&Self) -> io::Result<u64>,
}

impl Program {
    fn both(writer: u64, mount: &str, place: &Path) -> io::Result<[Self; 2]> {
        let directory = place.join(mount);
        fs::create_dir(&directory)?;
        let program = |kind: &str, does| Self {
            name: format!("{mount}.{kind}"),
            writer,
            directory: directory.clone(),
            does,
        };
        Ok([
            program("data", Self::write_records),
            program("names", Self::change_names),
        ])
    }

    /// Works until the end, and returns the number of the last record.
    pub fn work(&self) -> io::Result<u64> {
        let outcome = (self.does)(self);
        if let Err(error) = &outcome {
            println!("ERROR {}: {error}", self.name);
        }
        outcome
    }

    /// Carries an operation out, and tells of a pause.
    fn timed<T>(&self, operation: &str, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let begin = Instant::now();
        let done = work();
        let took = begin.elapsed();
        if took >= PAUSE {
            println!("pause {} {operation} {}", self.name, took.as_millis());
        }
        done.map_err(|error| {
            io::Error::new(error.kind(), format!("{operation} after {took:?}: {error}"))
        })
    }

    /// The same, for an operation that has another answer when it was carried out before. Only one that has met a failover has.
    fn repeatable(
        &self,
        operation: &str,
        again: ErrorKind,
        work: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let begin = Instant::now();
        match self.timed(operation, work) {
            Err(error) if error.kind() == again && begin.elapsed() >= PAUSE => {
                println!("again {} {operation}", self.name);
                Ok(())
            }
            done => done,
        }
    }

    fn write_records(&self) -> io::Result<u64> {
        let path = self.directory.join("data");
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .custom_flags(O_SYNC);
        let file = options.open(&path)?;
        let past_the_cache = OpenOptions::new()
            .read(true)
            .custom_flags(O_DIRECT)
            .open(&path)?;
        lock(&file, 0, F_WRLCK)?;
        let mut record = Box::new([0; RECORD_BYTES]);
        let mut number = 0;
        while !is_over() {
            number += 1;
            fill(&mut record, self.writer, number);
            let place = offset(self.writer, number);
            self.timed("write", || file.write_all_at(&record[..], place))?;
            self.check(&past_the_cache, number, number)?;
            if number % ACK_EVERY == 0 {
                println!("ack {} {number}", self.name);
            }
            if number % CHECK_EVERY == 0 {
                let first = number.saturating_sub(PLACES - 1).max(1);
                self.check(&past_the_cache, first, number)?;
            }
        }
        Ok(number)
    }

    /// Reads the records with these numbers.
    fn check(&self, file: &File, first: u64, last: u64) -> io::Result<()> {
        let (mut found, mut expected) = (Box::new(Aligned([0; RECORD_BYTES])), [0; RECORD_BYTES]);
        for number in first..=last {
            let place = offset(self.writer, number);
            self.timed("read", || file.read_exact_at(&mut found.0, place))?;
            fill(&mut expected, self.writer, number);
            if found.0 != expected {
                return Err(io::Error::other(describe(&found.0, self.writer, number)));
            }
        }
        Ok(())
    }

    fn change_names(&self) -> io::Result<u64> {
        let path = |kind: &str, number: u64| self.directory.join(format!("{kind}-{number}"));
        let lock_file = File::create(self.directory.join("lock"))?;
        let log = self.directory.join("log");
        let mut record = [0; RECORD_BYTES];
        let mut number = 0;
        while !is_over() {
            number += 1;
            fill(&mut record, self.writer, number);
            let new = path("new", number);
            let again = ErrorKind::AlreadyExists;
            self.repeatable("create", again, || File::create_new(&new).map(drop))?;
            let mut file = self.timed("open", || File::options().write(true).open(&new))?;
            self.timed("save", || {
                file.write_all(&record).and_then(|()| file.sync_all())
            })?;
            drop(file);
            let kept = path("kept", number);
            self.repeatable("rename", ErrorKind::NotFound, || fs::rename(&new, &kept))?;
            let directory = path("directory", number);
            self.repeatable("mkdir", again, || fs::create_dir(&directory))?;
            self.repeatable("rmdir", ErrorKind::NotFound, || fs::remove_dir(&directory))?;
            if let Some(old) = number.checked_sub(NAMES_KEPT).filter(|old| *old > 0) {
                self.repeatable("unlink", ErrorKind::NotFound, || {
                    fs::remove_file(path("kept", old))
                })?;
            }
            self.timed("lock", || lock(&lock_file, 8, F_WRLCK))?;
            self.timed("append", || append(&log, number))?;
            self.timed("unlock", || lock(&lock_file, 8, F_UNLCK))?;
            println!("ack {} {number}", self.name);
        }
        Ok(number)
    }
}

/// Adds a line to a file, and saves it.
fn append(log: &Path, number: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut log = options
        .append(true)
        .create(true)
        .custom_flags(O_SYNC)
        .open(log)?;
    log.write_all(format!("{number}\n").as_bytes())
}

/// Locks or unlocks the first bytes of a file, or all with 0.
fn lock(file: &File, bytes: i64, kind: c_short) -> io::Result<()> {
    let lock = Lock {
        kind,
        whence: 0,
        start: 0,
        bytes,
        owner: 0,
    };
    // SAFETY: the descriptor is open, and the structure lives.
    match unsafe { fcntl(file.as_raw_fd(), F_SETLKW, &raw const lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
