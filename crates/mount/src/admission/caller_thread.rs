//! The thread of a program that waits for the answer to a request, and whether it has been killed.
//!
//! The kernel would tell of a signal by `FUSE_INTERRUPT`. fuser 0.18 answers that request with `ENOSYS`, and the kernel then
//! sends no further one. Nor would it be enough: the kernel sends the same request for each signal that a program handles, and
//! a program expects no `EINTR` of a file on a disk. So the mount looks at the thread itself: a thread that has a fatal signal
//! pending does not return to its program any more. While it waits for a request that this process has read, the kernel keeps
//! it until the answer.

use std::fs;

/// Bit of `SIGKILL` among pending signals. The kernel gives it to each thread of a process that a signal ends.
const KILL: u64 = 1 << 8;
/// `PF_EXITING`: the thread ends, and waits for its asynchronous requests.
const EXITING: u64 = 4;

/// Places of fields in `/proc/PID/stat`, counted from the one behind the name.
const FLAGS: usize = 6;
const PENDING: usize = 28;

/// A thread, by its number; none for the kernel itself, and for a thread that this process cannot see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallerThread(u32);

impl CallerThread {
    /// The thread that a request names.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Whether the thread never returns to its program.
    pub fn is_dying(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0));
        self.0 != 0 && stat.is_ok_and(|stat| is_dying(&stat))
    }
}

fn is_dying(stat: &str) -> bool {
    // The name of the thread may hold anything.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let has = |place, bits: u64| {
        let field = fields.split(' ').nth(place).map(str::parse::<u64>);
        field.is_some_and(|number| number.is_ok_and(|number| number & bits != 0))
    };
    has(FLAGS, EXITING) || has(PENDING, KILL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_thread_is_dying_whatever_its_name() {
        let stat = |flags: u64, pending: u64| {
            let other = "0 ".repeat(PENDING - FLAGS - 1);
            format!("7 (a) D 1 b) D 1 7 7 0 -1 {flags} {other}{pending} 0 0")
        };
        assert!(!is_dying(&stat(0x40_0000, 0)));
        assert!(is_dying(&stat(0x40_0000, 256)) && is_dying(&stat(0x40_0004, 0)));
        assert!(!is_dying("") && !CallerThread::default().is_dying());
    }

    #[test]
    fn this_thread_lives() {
        assert!(!CallerThread::new(std::process::id()).is_dying());
    }
}
