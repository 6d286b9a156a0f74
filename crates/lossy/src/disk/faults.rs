//! The faults that a test has set on a disk.
//!
//! A fault waits until a call meets it. A fault of one call is then spent; a fault of all calls of a class stays.

use lockstep_types::Errno;

use super::call::CallClass;

/// A fault: one call fails, or all calls of a class fail.
#[derive(Clone, Copy, Debug)]
struct Fault {
    class: CallClass,
    /// If set, only calls on this file are counted.
    path: Option<&'static str>,
    /// Calls until the failing call; `None` if all calls fail from now on.
    calls_left: Option<u64>,
    errno: Errno,
}

/// All faults of a disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    /// Lets the `nth` call of a class fail, of all calls or of the calls on one file.
    pub(super) fn add(
        &mut self,
        class: CallClass,
        path: Option<&'static str>,
        nth: u64,
        errno: Errno,
    ) {
        self.0.push(Fault {
            class,
            path,
            calls_left: Some(nth.max(1)),
            errno,
        });
    }

    /// Lets all calls of a class fail.
    pub(super) fn add_for_all(&mut self, class: CallClass, errno: Errno) {
        self.0.push(Fault {
            class,
            path: None,
            calls_left: None,
            errno,
        });
    }

    /// Removes all faults.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Counts a call of a class, on a file if the file is known. Returns the error if the call has to fail.
    pub(super) fn meet(&mut self, class: CallClass, path: Option<&str>) -> Option<Errno> {
        let mut met = None;
        self.0.retain_mut(|fault| {
            if fault.class != class || fault.path.is_some_and(|only| path != Some(only)) {
                return true;
            }
            let left = fault.calls_left.map(|calls| calls - 1);
            fault.calls_left = left;
            let is_met = left.is_none_or(|calls| calls == 0);
            if is_met {
                met = met.or(Some(fault.errno));
            }
            !is_met || left.is_none()
        });
        met
    }
}
