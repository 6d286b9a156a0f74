//! Clients with other rights than the test. Each client is a thread with its own credentials.

#![allow(clippy::unwrap_used)]

use std::thread;

use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// The credentials of a client.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// The only supplementary group.
    pub group: Option<u32>,
    pub capabilities: CapabilitySet,
}

impl Caller {
    /// A user in one group, without any privilege.
    pub const fn user(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            group: None,
            capabilities: CapabilitySet::empty(),
        }
    }

    /// Root, without some of its capabilities.
    pub const fn root_without(missing: CapabilitySet) -> Self {
        Self {
            capabilities: CapabilitySet::all().difference(missing),
            ..Self::user(0, 0)
        }
    }

    /// Adds a further group.
    pub const fn and_group(self, group: u32) -> Self {
        Self {
            group: Some(group),
            ..self
        }
    }

    /// Replaces the capabilities.
    pub const fn with(self, capabilities: CapabilitySet) -> Self {
        Self {
            capabilities,
            ..self
        }
    }

    /// Runs `body` with these credentials.
    pub fn run<T: Send>(self, body: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let caller = scope.spawn(|| {
                self.become_it();
                body()
            });
            caller.join().unwrap()
        })
    }

    fn become_it(self) {
        let held = rustix::thread::capabilities(None).unwrap().permitted;
        let kept = self.capabilities.intersection(held);
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        let groups: Vec<_> = self.group.into_iter().map(Gid::from_raw).collect();
        set_keep_capabilities(true).unwrap();
        set_thread_groups(&groups).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, sets).unwrap();
    }
}
