//! The processes that hold a `flock`, by `/proc/locks`: for messages, and to tell processes of other users from
//! processes that may be a node.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

/// A process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number; the process may have ended and left the lock to a child.
    pub pid: u32,
    /// Its user, if `/proc` shows the process.
    pub uid: Option<u32>,
}

/// The processes that hold a `flock` on the open file, as far as they are known.
pub fn holders(fd: BorrowedFd<'_>) -> Vec<Holder> {
    let table = fs::read_to_string("/proc/locks").unwrap_or_default();
    let Ok(stat) = rustix::fs::fstat(fd) else {
        return Vec::new();
    };
    let (major, minor) = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    let file = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let pids = table.lines().filter_map(|line| holder_of(line, &file));
    let mut holders = Vec::new();
    for pid in pids {
        match user_of(pid) {
            Some(uid) => holders.push(Holder {
                pid,
                uid: Some(uid),
            }),
            None => holders.extend(openers(fd, pid)),
        }
    }
    holders
}

/// The other processes that have the file open: the process that took the lock has ended, and one of these holds the
/// lock now. If there is none, the process that took the lock.
fn openers(fd: BorrowedFd<'_>, ended: u32) -> Vec<Holder> {
    let path = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let others = numbers.filter(|pid| *pid != std::process::id() && has_open(*pid, &path));
    let found: Vec<_> = others
        .map(|pid| Holder {
            pid,
            uid: user_of(pid),
        })
        .collect();
    if found.is_empty() {
        return vec![Holder {
            pid: ended,
            uid: None,
        }];
    }
    found
}

/// By the path alone: `stat` of a file that another process has open may wait for a disk.
fn has_open(pid: u32, path: &Path) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let mut descriptors = descriptors.into_iter().flatten().flatten();
    descriptors.any(|open| fs::read_link(open.path()).is_ok_and(|target| target == path))
}

/// The effective user of a process. Not the owner of its files in `/proc`, which a process can make root's.
fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    uids.split_whitespace().nth(1)?.parse().ok()
}

/// The process in a line such as `1: FLOCK ADVISORY WRITE 1234 08:02:131074 0 EOF`, if the line shows a `flock` held on
/// `file`. An arrow before its kind marks a lock that a process waits for.
fn holder_of(line: &str, file: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let pid = words.nth(2)?;
    (words.next()? == file).then(|| pid.parse().ok()).flatten()
}

/// The holders in parentheses, for a message; nothing if none is known.
pub fn describe(holders: &[Holder]) -> String {
    let named: Vec<_> = holders.iter().map(Holder::describe).collect();
    if named.is_empty() {
        return String::new();
    }
    format!(" ({})", named.join(", "))
}

impl Holder {
    fn describe(&self) -> String {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid));
        let name = name.map_or_else(|_| "ended".to_owned(), |name| name.trim().to_owned());
        match self.uid {
            Some(uid) => format!("process {}, {name}, of user {uid}", self.pid),
            None => format!("process {}, {name}", self.pid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_of_the_table() {
        let file = "08:02:131074";
        let held = "1: FLOCK  ADVISORY  WRITE 1234 08:02:131074 0 EOF";
        assert_eq!(holder_of(held, file), Some(1234));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 1234 08:02:131074 0 EOF",
            "2: POSIX  ADVISORY  WRITE 1234 08:02:131074 0 EOF",
            "3: FLOCK  ADVISORY  WRITE 1234 08:02:7 0 EOF",
            "",
        ] {
            assert_eq!(holder_of(other, file), None, "{other}");
        }
    }
}
