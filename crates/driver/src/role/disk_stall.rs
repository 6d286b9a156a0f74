//! A node whose own disk hangs: it notices that, and a primary with a secondary that can take over gives way (rule R12).
//!
//! To give way needs no disk: the node closes the connection, and from then on deals neither with the other node nor with
//! the witness, as if it were cut off from both. So its lease ends, and the secondary takes over by the answer of the witness
//! (rule R7). While the disk hangs, the dialer dials nobody, callers are refused, and the witness is asked nothing. Once the
//! disk answers, the nodes meet as after any cut.
//!
//! Invariant: the thread that looks waits for no disk.

use std::sync::Arc;
use std::time::Duration;

use lockstep_roles::RoleEvent;
use lockstep_types::time::millis;

use super::current_role::CurrentRole;
use super::keeper::RoleKeeper;
use crate::client::Standing;
use crate::engine::disk_watch::DiskProbe;
use crate::host::signal::wait_until;

/// The longest time between two probes.
const PROBE_MAX: Duration = Duration::from_secs(3);
/// Probes in the limit, at least.
const PROBES_IN_LIMIT: u32 = 8;
/// Looks at a probe that is under way, in the time between two probes.
const LOOKS_IN_PAUSE: u32 = 6;

impl RoleKeeper {
    /// Watches the disk of the store until the datastore is stopped. Returns at once if the configuration wants no watch.
    pub fn watch_disk(&self) {
        if self.engine.disk.watch.limit().is_some() {
            StallGuard::new(&self.role).run();
        }
    }
}

/// See the head of this file.
struct StallGuard<'a> {
    role: &'a CurrentRole,
    probe: Arc<DiskProbe>,
    /// The moment at which the last probe began.
    asked: Duration,
    /// The moment of the last look.
    looked: Duration,
}

impl<'a> StallGuard<'a> {
    fn new(role: &'a CurrentRole) -> Self {
        let now = role.engine.host.now();
        Self {
            role,
            probe: DiskProbe::new(Arc::clone(role.engine.store.backing())),
            asked: now,
            looked: now,
        }
    }

    /// Time between the beginnings of two probes, by the limit of this moment.
    fn pause(&self) -> Duration {
        let limit = self.role.engine.disk.watch.limit();
        limit.map_or(PROBE_MAX, |limit| PROBE_MAX.min(limit / PROBES_IN_LIMIT))
    }

    fn run(mut self) {
        let engine = &self.role.engine;
        let host = &*engine.host;
        while !engine.is_stopping() {
            let look = self.pause() / LOOKS_IN_PAUSE;
            if self.probe.is_under_way() {
                let signals = [&self.probe.over, &*engine.wakes.changes];
                let until = host.now() + look;
                wait_until(host, &signals, Some(until), || {
                    engine.is_stopping() || !self.probe.is_under_way()
                });
            } else {
                engine.wait_until(Some(self.asked + self.pause()), || false);
            }
            // A process that was suspended has not looked.
            let passed = host.since(self.looked).min(look * 2);
            self.looked = host.now();
            if self.probe.is_under_way() {
                self.note_silence(passed);
            } else {
                self.note_answer();
            }
        }
        // The directory of the store is in use until then.
        self.probe
            .over
            .wait_until(host, None, || !self.probe.is_under_way());
    }

    fn note_answer(&mut self) {
        let engine = &self.role.engine;
        let answer = engine.disk.watch.note_answer();
        if answer.was_stuck {
            tracing::warn!(
                datastore = engine.name(),
                silent_ms = answer.silent_ms,
                "the disk of this node answers again"
            );
        }
        // A paused primary may ask the witness from now on, also after a silence below the limit.
        if answer.silent_ms > 0 {
            engine.wakes.changes.raise();
        }
        // A failed disk is not asked: it promises nothing any more.
        if engine.host.since(self.asked) >= self.pause() && !engine.poison.has_failed() {
            self.asked = engine.host.now();
            self.probe.begin(&*engine.host);
        }
    }

    fn note_silence(&self, time: Duration) {
        let engine = &self.role.engine;
        let watch = &engine.disk.watch;
        let was_stuck = watch.is_stuck();
        watch.note_silence(time);
        engine.wakes.changes.raise();
        let Some(limit) = watch.stuck_for_more_than() else {
            return;
        };
        if !was_stuck {
            tracing::error!(
                datastore = engine.name(),
                limit_ms = millis(limit),
                "the disk of this node HANGS: it has not answered for this time, and reports no error; see `lockstep why`"
            );
        }
        if !self.can_be_replaced() {
            return;
        }
        let event = RoleEvent::DiskHangs {
            may_peer_hang: watch.may_peer_hang(),
        };
        let effects = self.role.decide(&event);
        if !effects.is_empty() && watch.give_way() {
            for effect in effects {
                // Giving way needs no disk, and fails never.
                let _given = self.role.carry_out(effect);
            }
        }
    }

    /// Whether the secondary may be able to take over, by the facts that need no lock of the core: a thread may hold that lock, and
    /// wait for the disk. The role machine decides.
    fn can_be_replaced(&self) -> bool {
        let engine = &self.role.engine;
        let peer_is_complete = || self.role.session().replication().peer.is_complete();
        engine.gate.standing() == Standing::Serving && engine.role.protects() && peer_is_complete()
    }
}
