//! The reasons behind the state of a datastore, for `status` and the log.

use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_types::Timestamp;
use lockstep_types::time::millis;
use parking_lot::Mutex;

use crate::engine::contact::Contact;
use crate::report::{DatastoreStatus, ProvedStatus, VerifiedStatus};

/// Most differences that are kept of a comparison.
const DIFFERENCES_KEPT: usize = 3;

/// Longest reason that is kept, in characters: the peer may have given it.
const REASON_CHARS_MAX: usize = 1000;

/// The notes of a datastore on its state, with their log.
pub(crate) struct StatusNotes {
    /// Name of the datastore.
    name: String,
    /// The last moment at which this secondary was in sync.
    pub contact: Contact,
    notes: Mutex<Reasons>,
}

struct Reasons {
    /// The time from which on the present state holds.
    since: Duration,
    /// Why the nodes are not in sync, as far as known.
    reason: Option<String>,
    /// The reason is a failed disk of the peer.
    peer_disk_failed: bool,
    /// The reason lies between the nodes, and an operator has to act: waiting for the other node does not help.
    is_obstacle: bool,
    /// Why a client was refused that may be the primary, while no primary is connected.
    unauthenticated: Option<String>,
    /// The result of the last comparison, unless a resync has made it void.
    verified: Option<VerifiedStatus>,
    /// The last proof that both copies are the same.
    proved: Option<ProvedStatus>,
    resync: ResyncNote,
}

/// The resync of the moment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ResyncNote {
    /// No resync is under way.
    None,
    /// A resync is under way.
    UnderWay,
    /// The resync that is under way has compared everything.
    AllCompared,
}

impl Reasons {
    /// Replaces the reason; returns whether the new one differs.
    fn explain(&mut self, reason: Option<&str>) -> bool {
        let is_new = self.reason.as_deref() != reason;
        if is_new {
            self.reason = reason.map(str::to_owned);
            self.peer_disk_failed = false;
            self.is_obstacle = false;
        }
        is_new
    }
}

impl StatusNotes {
    /// The notes of a datastore that is opened at `now`.
    pub const fn new(name: String, now: Duration, contact: Contact) -> Self {
        let notes = Reasons {
            since: now,
            reason: None,
            peer_disk_failed: false,
            is_obstacle: false,
            unauthenticated: None,
            verified: None,
            proved: None,
            resync: ResyncNote::None,
        };
        Self {
            name,
            contact,
            notes: Mutex::new(notes),
        }
    }

    /// The state has changed at `now`.
    pub fn note_state(&self, state: State, now: Duration) {
        let reason = self.update_for(state, now);
        let (datastore, described) = (&self.name, state.describe());
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

    fn update_for(&self, state: State, now: Duration) -> String {
        let mut notes = self.notes.lock();
        notes.since = now;
        if state.is_in_sync() && notes.resync != ResyncNote::None {
            // A resync of the changes leaves other differences as they are.
            let all_compared = notes.resync == ResyncNote::AllCompared;
            notes.verified.take_if(|verified| {
                verified.sent_again == 0 && (all_compared || verified.identical)
            });
        }
        notes.resync = match state {
            State::ResyncNamespace => ResyncNote::UnderWay,
            _ if is_on_the_way(state) && !state.is_in_sync() => notes.resync,
            _ => ResyncNote::None,
        };
        match state {
            State::ResyncNamespace => {
                notes.explain(Some("the secondary is being brought up to date"));
            }
            _ if state.is_in_sync() => {
                notes.explain(None);
            }
            _ => {}
        }
        notes.reason.clone().unwrap_or_default()
    }

    /// Remembers why the datastore is, or will be, out of sync.
    pub fn set_reason(&self, reason: &str) {
        let (datastore, reason) = (&self.name, &plain(reason));
        if self.notes.lock().explain(Some(reason)) {
            tracing::info!(datastore, reason, "a new reason for the state");
        }
    }

    /// The state as a refused command tells it: with the reason, as far as that is known.
    pub fn in_words(&self, state: State) -> String {
        match shown_reason(&self.notes.lock(), state) {
            Some(reason) => format!("{}: {reason}", state.describe()),
            None => state.describe().to_owned(),
        }
    }

    /// Remembers a reason for which an operator has to act: waiting for the other node does not help.
    pub fn set_obstacle(&self, reason: &str) {
        let (datastore, reason) = (&self.name, &plain(reason));
        let mut notes = self.notes.lock();
        if notes.explain(Some(reason)) {
            tracing::warn!(datastore, reason, "the nodes do not get together");
        }
        notes.is_obstacle = true;
    }

    /// Remembers that the peer's disk has failed, by the peer's own word. The note holds until the peer says more.
    pub fn set_peer_disk_failed(&self, reason: &str) {
        self.set_reason(reason);
        self.notes.lock().peer_disk_failed = true;
    }

    /// Remembers why a client was refused before it was authenticated.
    pub fn set_unauthenticated(&self, reason: &str) {
        self.notes.lock().unauthenticated = Some(plain(reason));
    }

    /// Remembers why the connection ended, unless this node ended it for a reason that is known.
    pub fn set_ending(&self, reason: &str, given_up: bool) {
        let is_explained = self.notes.lock().reason.is_some();
        if !(given_up && is_explained) {
            self.set_reason(reason);
        }
    }

    /// The primary is connected again: the failure of its disk, or the obstacle between the nodes, is gone.
    pub fn forget_obstacles(&self) {
        let mut notes = self.notes.lock();
        notes.unauthenticated = None;
        if notes.peer_disk_failed || notes.is_obstacle {
            notes.explain(None);
        }
    }

    /// The resync that is under way has compared everything.
    pub fn note_all_compared(&self) {
        self.notes.lock().resync = ResyncNote::AllCompared;
    }

    /// Remembers the result of a comparison of both nodes that ended at `time`.
    pub fn note_comparison(&self, report: &lockstep_verify::Report, time: Timestamp) {
        let verified = verified(report, time, false);
        self.log_differences(&verified, "verify: the nodes hold different data");
        let mut notes = self.notes.lock();
        if !verified.identical {
            notes.proved = None;
        }
        notes.verified = Some(verified);
    }

    /// The same, from before the start of this process, unless this process knows more.
    pub fn begin_proved(&self, through: String, time: Timestamp) {
        let mut notes = self.notes.lock();
        if notes.proved.is_none() && notes.verified.is_none() {
            let time = time.utc();
            notes.proved = Some(ProvedStatus { through, time });
        }
    }

    /// Remembers that both copies were found to be the same, and all operations before `through` in them, by a comparison that
    /// ended at `time`.
    pub fn note_proved(&self, through: String, time: Timestamp) {
        let time = time.utc();
        self.notes.lock().proved = Some(ProvedStatus { through, time });
    }

    /// Remembers the result of the comparison that follows a resync of the changes. If nothing differs, the word of a
    /// comparison of everything stays.
    pub fn note_touched(&self, report: &lockstep_verify::Report, time: Timestamp) {
        let verified = verified(report, time, true);
        self.log_differences(
            &verified,
            "the comparison after a resync has found different data: the sync ends, and everything is compared",
        );
        if verified.identical {
            tracing::info!(
                datastore = self.name,
                inodes = report.inodes,
                bytes = report.bytes,
                "what the resync has touched is the same on both nodes"
            );
        }
        let mut notes = self.notes.lock();
        if !verified.identical || notes.verified.is_none() {
            notes.verified = Some(verified);
        }
    }

    /// Remembers that files differ at the end of the resync that has sent them.
    pub fn note_unproved(&self, report: &lockstep_verify::Report, time: Timestamp) {
        let verified = verified(report, time, true);
        self.log_differences(
            &verified,
            "the comparison at the end of a resync has found different data: it is sent again",
        );
        let mut notes = self.notes.lock();
        notes.proved = None;
        notes.verified = Some(verified);
    }

    /// Remembers that the resync has sent so many inodes again, and that they are the same then.
    pub fn note_sent_again(&self, inodes: u64) {
        tracing::error!(
            datastore = self.name,
            inodes,
            "what differed at the end of the resync was sent again, and is the same on both nodes now"
        );
        if let Some(verified) = &mut self.notes.lock().verified {
            (verified.identical, verified.sent_again) = (true, inodes);
        }
    }

    fn log_differences(&self, verified: &VerifiedStatus, what: &str) {
        if !verified.identical {
            tracing::error!(
                datastore = self.name,
                differences = verified.differences_total,
                first = verified.differences.first(),
                "{what}"
            );
        }
    }

    /// Adds the notes to a status of `state` at `now`.
    pub fn add_to(&self, status: &mut DatastoreStatus, state: State, now: Duration) {
        let notes = self.notes.lock();
        status.sync.since_ms = millis(now.saturating_sub(notes.since));
        status.sync.reason = shown_reason(&notes, state);
        status.verified.clone_from(&notes.verified);
        if !state.is_secondary() {
            status.sync.copy.proved.clone_from(&notes.proved);
        }
        let was_in_sync = state.is_secondary() && !state.is_in_sync();
        status.sync.copy.as_of = self.contact.last().filter(|_| was_in_sync);
        if let Some(peer) = &mut status.peer {
            peer.disk_failed = notes.peer_disk_failed;
            peer.obstacle = notes.is_obstacle;
        }
    }
}

/// The result of a comparison, as it is kept.
fn verified(
    report: &lockstep_verify::Report,
    time: Timestamp,
    only_touched: bool,
) -> VerifiedStatus {
    let in_words = |difference: &lockstep_verify::InodeDifference| {
        let path = difference.path.as_deref().unwrap_or("(no name)");
        plain(&format!("{path}: {}", difference.what))
    };
    let first = report.differences.iter().take(DIFFERENCES_KEPT);
    VerifiedStatus {
        time: time.utc(),
        identical: report.is_identical(),
        differences_total: report.total,
        differences: first.map(in_words).collect(),
        only_touched,
        sent_again: 0,
    }
}

/// A reason as a terminal may show it.
fn plain(reason: &str) -> String {
    let shown = reason.chars().take(REASON_CHARS_MAX);
    shown
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Whether the state is in sync, or leads there by itself without a loss.
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
fn shown_reason(notes: &Reasons, state: State) -> Option<String> {
    if state.is_in_sync() {
        return None;
    }
    let waits = matches!(
        state,
        State::SecondaryOutOfSync | State::SecondaryDisconnected
    );
    if !waits {
        return notes.reason.clone();
    }
    let never = "no primary has connected since this node was started";
    let reason = notes.reason.as_deref().unwrap_or(never);
    Some(match &notes.unauthenticated {
        Some(refused) => {
            format!("{reason}; a client that may be the primary, or not, was refused: {refused}")
        }
        None => reason.to_owned(),
    })
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
