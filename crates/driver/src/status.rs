//! What the datastore tells of itself: for the status command, the log, and `statfs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockstep_fs::poison::utc;
use lockstep_repl::core::ConnectionId;
use lockstep_repl::state::{ServiceMode, State};
use lockstep_types::Osn;
use lockstep_types::settings::Role;

use super::Datastore;
use crate::report::{
    DatastoreStatus, PeerStatus, PoisonStatus, ResyncStatus, ServiceStatus, SpaceStatus,
    VerifiedStatus,
};

/// What is known besides the core's state.
pub(super) struct Facts {
    /// Since when the present state holds.
    since: Duration,
    /// Why it is not in sync, as far as known.
    reason: Option<String>,
    /// That is because the peer's disk has failed.
    peer_disk_failed: bool,
    /// That is because of something between the nodes that an operator has to see to: it does not go away by
    /// waiting for the other node.
    obstacle: bool,
    /// Why somebody was refused last who may be the primary, while none leads this node.
    stranger: Option<String>,
    /// What the last comparison found, unless a resync has made it void.
    verified: Option<VerifiedStatus>,
    /// All is being compared and made equal.
    resyncing: bool,
}

impl Facts {
    /// Of a datastore opened at `now`.
    pub const fn new(now: Duration) -> Self {
        Self {
            since: now,
            reason: None,
            peer_disk_failed: false,
            obstacle: false,
            stranger: None,
            verified: None,
            resyncing: false,
        }
    }

    /// Gives another reason than before; whether it is another.
    fn explain(&mut self, reason: Option<&str>) -> bool {
        let is_new = self.reason.as_deref() != reason;
        if is_new {
            self.reason = reason.map(str::to_owned);
            self.peer_disk_failed = false;
            self.obstacle = false;
        }
        is_new
    }
}

/// Most differences that are kept of a comparison.
const DIFFERENCES_KEPT: usize = 3;

/// Longest reason that is kept, in characters: the peer may have given it.
const REASON_CHARS_MAX: usize = 1000;

/// A reason as a terminal may show it, however it came here.
fn plain(reason: &str) -> String {
    let shown = reason.chars().take(REASON_CHARS_MAX);
    shown
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

impl Datastore {
    /// The state has changed: say so at once.
    pub(super) fn entered(self: &Arc<Self>, state: State) {
        self.state_version.fetch_add(1, Ordering::AcqRel);
        let reason = {
            let mut facts = self.facts.lock();
            facts.since = self.host.now();
            if state.is_in_sync() && facts.resyncing {
                facts.verified = None;
            }
            facts.resyncing = match state {
                State::ResyncNamespace => true,
                _ => facts.resyncing && is_on_the_way(state) && !state.is_in_sync(),
            };
            match state {
                State::ResyncNamespace => {
                    facts.explain(Some("the secondary is being brought up to date"));
                }
                _ if state.is_in_sync() => {
                    facts.explain(None);
                }
                _ => {}
            }
            facts.reason.clone().unwrap_or_default()
        };
        let (datastore, described) = (self.name(), state.describe());
        if let (true, Some(link)) = (state.is_in_sync(), &*self.link.read()) {
            link.course.in_sync.store(true, Ordering::Release);
        }
        if state == State::Synced {
            self.ask_for_room_later();
        }
        if is_on_the_way(state) {
            tracing::info!(datastore, state = described, "the state has changed");
        } else {
            tracing::warn!(
                datastore,
                state = described,
                reason,
                "the state has changed"
            );
        }
    }

    /// Remembers why the datastore is, or will be, out of sync.
    pub(super) fn set_reason(&self, reason: &str) {
        let reason = &plain(reason);
        if self.facts.lock().explain(Some(reason)) {
            tracing::info!(
                datastore = self.name(),
                reason,
                "a new reason for the state"
            );
        }
    }

    /// The same, when it does not go away by waiting for the other node: an operator has to see to it.
    pub(super) fn set_obstacle(&self, reason: &str) {
        let reason = &plain(reason);
        let mut facts = self.facts.lock();
        if facts.explain(Some(reason)) {
            tracing::warn!(
                datastore = self.name(),
                reason,
                "the nodes do not get together"
            );
        }
        facts.obstacle = true;
    }

    /// The peer was refused before it could lead this node.
    pub fn told_why_not_led(&self, reason: &str) {
        if self.waits_for_primary() {
            self.set_obstacle(reason);
        }
    }

    /// Somebody was refused before he could prove who he is: he may be the primary, or anybody. So that is shown
    /// beside the reason, and never in place of one that is known. `reason` must hold no word of his.
    pub fn told_of_stranger(&self, reason: &str) {
        if self.waits_for_primary() {
            self.facts.lock().stranger = Some(plain(reason));
        }
    }

    /// The same, when it is that the peer's disk has failed: by its own word, so until it says more.
    pub(super) fn set_peer_disk_failed(&self, reason: &str) {
        self.set_reason(reason);
        self.facts.lock().peer_disk_failed = true;
    }

    /// The peer leads again: what its disk had, or what stood between the nodes, was seen to.
    pub(super) fn forget_obstacles(&self) {
        let mut facts = self.facts.lock();
        facts.stranger = None;
        if facts.peer_disk_failed || facts.obstacle {
            facts.explain(None);
        }
    }

    /// [`Self::set_reason`], if a connection still stands: what broke with it is no reason of its own.
    pub(super) fn set_reason_over(&self, connection: ConnectionId, reason: &str) {
        if self.link_of(connection).is_some() {
            self.set_reason(reason);
        }
    }

    /// Remembers what a comparison of both nodes has found.
    pub(super) fn note_comparison(&self, report: &lockstep_verify::Report) {
        let in_words = |difference: &lockstep_verify::InodeDifference| {
            let path = difference.path.as_deref().unwrap_or("(no name)");
            plain(&format!("{path}: {}", difference.what))
        };
        let verified = VerifiedStatus {
            time: utc(self.host.time_of_day()),
            identical: report.is_identical(),
            differences_total: report.total,
            differences: report
                .differences
                .iter()
                .take(DIFFERENCES_KEPT)
                .map(in_words)
                .collect(),
        };
        if !verified.identical {
            tracing::error!(
                datastore = self.name(),
                differences = verified.differences_total,
                first = verified.differences.first(),
                "verify: the nodes hold different data"
            );
        }
        self.facts.lock().verified = Some(verified);
    }

    /// Remembers why the connection ended, unless a deeper reason is known.
    pub(super) fn set_ending(&self, reason: &str, given_up: bool) {
        let explained = self.facts.lock().reason.is_some();
        if !(given_up && explained) {
            self.set_reason(reason);
        }
    }

    /// Everything an operator may want to know.
    pub fn status(&self) -> DatastoreStatus {
        let (state, in_flight, next) = {
            let core = self.core.lock();
            (core.state(), core.in_flight(), core.next_osn())
        };
        let (since_ms, reason, verified) = {
            let facts = self.facts.lock();
            let since = self.host.since(facts.since).as_millis();
            (
                u64::try_from(since).unwrap_or(u64::MAX),
                shown_reason(&facts, state),
                facts.verified.clone(),
            )
        };
        let applied = self.store.applied_lately();
        let poisoned = self.poison.failure().map(|failure| PoisonStatus {
            reason: failure.reason,
            time: failure.time,
        });
        DatastoreStatus {
            name: self.config.name.clone(),
            uuid: self.store.uuid().to_string(),
            role: self.config.role,
            state: state.describe().to_owned(),
            service: serving(state),
            marked_in_sync: self.role.state().in_sync,
            in_sync: state.is_in_sync() && poisoned.is_none(),
            since_ms,
            reason,
            poisoned,
            peer: self.peer_status(),
            generation: self.generation().get(),
            osn: match self.config.role {
                // The last number given out: the one before the next.
                Role::Primary => Osn {
                    sequence: next.sequence.saturating_sub(1),
                    ..next
                }
                .to_string(),
                Role::Secondary => applied.to_string(),
            },
            writes_in_flight: in_flight.writes as u64,
            metadata_in_flight: in_flight.metadata as u64,
            kept_bytes: self.keeper.load().bytes(),
            paw: self.paw.len() as u64,
            saw: self.saw.len() as u64,
            mount: match self.config.role {
                Role::Primary => Some(self.config.mount.display().to_string()),
                Role::Secondary => None,
            },
            durability: self.config.durability,
            on_peer_loss: self.config.on_peer_loss,
            space: self.store.space().ok().map(|space| SpaceStatus {
                total_bytes: space.total_bytes,
                available_bytes: space.available_bytes,
            }),
            resync: (state == State::ResyncContent).then(|| self.resync_status()),
            started: true,
            stray: None,
            verified,
        }
    }

    fn resync_status(&self) -> ResyncStatus {
        let progress = &self.resync;
        ResyncStatus {
            files_total: progress.inodes_total.get(),
            files_done: progress.inodes_done.get(),
            bytes_total: progress.bytes_total.get(),
            bytes_done: progress.bytes_done.get(),
            bytes_sent: progress.bytes_sent.get(),
        }
    }

    fn peer_status(&self) -> Option<PeerStatus> {
        let peer = self.config.peer.as_ref()?;
        let connected = self.link.read().is_some();
        let facts = self.facts.lock();
        Some(PeerStatus {
            address: peer.address.to_string(),
            connected,
            encryption: peer.encryption,
            disk_failed: facts.peer_disk_failed,
            obstacle: facts.obstacle,
        })
    }
}

/// Nothing was lost on the way to this state: it is in sync, or gets there by itself.
const fn is_on_the_way(state: State) -> bool {
    !matches!(
        state,
        State::OutOfSync
            | State::Paused
            | State::Frozen
            | State::LeavingSync
            | State::Poisoned
            | State::SecondaryOutOfSync
            | State::SecondaryDisconnected
            | State::SecondaryPoisoned
    )
}

/// Why the nodes are not in sync, as far as known.
fn shown_reason(facts: &Facts, state: State) -> Option<String> {
    if state.is_in_sync() {
        return None;
    }
    let waits = matches!(
        state,
        State::SecondaryOutOfSync | State::SecondaryDisconnected
    );
    if !waits {
        return facts.reason.clone();
    }
    let never = "no primary has connected since this node was started";
    let reason = facts.reason.as_deref().unwrap_or(never);
    Some(match &facts.stranger {
        Some(stranger) => {
            format!("{reason}; somebody who may be the primary, or not, was refused: {stranger}")
        }
        None => reason.to_owned(),
    })
}

fn serving(state: State) -> ServiceStatus {
    if state.is_secondary() {
        return ServiceStatus::None;
    }
    match state.service_mode() {
        ServiceMode::Alone => ServiceStatus::Alone,
        ServiceMode::Mirrored => ServiceStatus::Mirrored,
        ServiceMode::WritesAlone => ServiceStatus::WritesAlone,
        ServiceMode::Wait => ServiceStatus::Waiting,
        ServiceMode::Refused => ServiceStatus::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_from_elsewhere_does_nothing_to_a_terminal() {
        assert_eq!(plain("full\u{1b}[2J\ndisk"), "full [2J disk");
        assert_eq!(plain(&"é".repeat(5000)).chars().count(), 1000);
    }
}
