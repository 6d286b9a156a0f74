//! The progress of the resync of the moment, for the operators of both nodes.
//!
//! The jobs count, and this module makes a status of the counts whenever an operator asks, and at each sign of life for the
//! secondary. So the speed is known although no thread looks at the counts by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockstep_repl::state::State;
use lockstep_resync::{Counter, JobProgress};
use lockstep_types::time::millis;
use lockstep_types::{ResyncPhase, ResyncStatus, ResyncWait};
use parking_lot::Mutex;

use super::speed::{Speed, Work};

/// See the head of this file.
#[derive(Default)]
pub(super) struct ResyncMeter {
    /// Bytes of records that the resync of the moment has sent.
    pub records: Counter,
    /// The content.
    pub content: JobProgress,
    /// The comparison at the end.
    pub proof: JobProgress,
    is_proving: AtomicBool,
    /// [`JobProgress::starts`] when the resync of content began: its totals are not known before the next one.
    starts_before: Counter,
    seen: Mutex<(Option<ResyncPhase>, Speed)>,
}

impl ResyncMeter {
    /// The resync of the namespace begins.
    pub fn begin_namespace(&self) {
        self.records.set(0);
        self.is_proving.store(false, Ordering::Relaxed);
    }

    /// The resync of content begins.
    pub fn begin_content(&self) {
        self.starts_before.set(self.content.starts());
    }

    /// The comparison of this number of inodes begins, which the resync has touched.
    pub fn begin_proof(&self, inodes: u64) {
        self.proof.start(inodes, 0);
        self.is_proving.store(true, Ordering::Relaxed);
    }

    /// The progress at `now`; `None` if there is nothing to do for a resync in this state. `waits_for`: the reason for which
    /// its job waits.
    pub fn status(
        &self,
        state: State,
        now: Duration,
        waits_for: Option<ResyncWait>,
    ) -> Option<ResyncStatus> {
        let phase = self.phase_of(state);
        let mut seen = self.seen.lock();
        let (seen_phase, speed) = &mut *seen;
        if *seen_phase != phase {
            *seen_phase = phase;
            speed.clear();
        }
        let counted = self.counted(phase?);
        let is_working = match counted.phase {
            ResyncPhase::Namespace | ResyncPhase::Proving => true,
            // Before that, the files are being counted.
            ResyncPhase::Content => counted.bytes_total.is_some(),
            ResyncPhase::Recovery | ResyncPhase::Finish => false,
        };
        if !is_working {
            return Some(counted);
        }
        speed.note(
            now,
            Work {
                bytes: counted.bytes_done,
                files: counted.files_done,
            },
        );
        let bytes_total = match counted.phase {
            // The bytes that have to be read are not known before.
            ResyncPhase::Proving => Some(0),
            _ => counted.bytes_total,
        };
        let left = bytes_total.zip(counted.files_total);
        let left = left.and_then(|(bytes, files)| {
            speed.time_for(Work {
                bytes: bytes.saturating_sub(counted.bytes_done),
                files: files.saturating_sub(counted.files_done),
            })
        });
        Some(ResyncStatus {
            bytes_per_second: speed.bytes_per_second(),
            left_ms: left.map(millis),
            waits_for,
            ..counted
        })
    }

    /// The phase of a primary in a state.
    fn phase_of(&self, state: State) -> Option<ResyncPhase> {
        match state {
            State::CatchingUp => Some(ResyncPhase::Recovery),
            State::ResyncNamespace | State::ResyncTail => Some(ResyncPhase::Namespace),
            State::ResyncContent if self.is_proving.load(Ordering::Relaxed) => {
                Some(ResyncPhase::Proving)
            }
            State::ResyncContent => Some(ResyncPhase::Content),
            State::EnteringSync => Some(ResyncPhase::Finish),
            _ => None,
        }
    }

    /// The counts of a phase.
    fn counted(&self, phase: ResyncPhase) -> ResyncStatus {
        let nothing = ResyncStatus {
            phase,
            whole: None,
            files_total: None,
            files_done: 0,
            bytes_total: None,
            bytes_done: 0,
            bytes_sent: 0,
            bytes_per_second: None,
            left_ms: None,
            waits_for: None,
        };
        match phase {
            ResyncPhase::Recovery => nothing,
            ResyncPhase::Namespace => ResyncStatus {
                bytes_done: self.records.get(),
                bytes_sent: self.records.get(),
                ..nothing
            },
            ResyncPhase::Proving => ResyncStatus {
                whole: Some(self.content.is_whole()),
                files_total: Some(self.proof.inodes_total.get()),
                files_done: self.proof.inodes_done.get(),
                bytes_done: self.proof.bytes_done.get(),
                bytes_sent: self.content.bytes_sent.get(),
                ..nothing
            },
            ResyncPhase::Content | ResyncPhase::Finish => {
                if self.content.starts() == self.starts_before.get() {
                    return nothing;
                }
                let content = &self.content;
                ResyncStatus {
                    whole: Some(content.is_whole()),
                    files_total: Some(content.inodes_total.get()),
                    files_done: content.inodes_done.get(),
                    bytes_total: Some(content.bytes_total.get()),
                    bytes_done: content.bytes_done.get(),
                    bytes_sent: content.bytes_sent.get(),
                    ..nothing
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITED: Option<ResyncWait> = Some(ResyncWait::Limit);

    fn status(progress: &ResyncMeter, state: State, seconds: u64) -> ResyncStatus {
        let now = Duration::from_secs(seconds);
        progress.status(state, now, LIMITED).unwrap()
    }

    #[test]
    fn each_phase_shows_what_is_known_in_it() {
        let progress = ResyncMeter::default();
        assert_eq!(progress.status(State::Synced, Duration::ZERO, None), None);
        let recovery = status(&progress, State::CatchingUp, 0);
        assert_eq!(
            (recovery.phase, recovery.bytes_total),
            (ResyncPhase::Recovery, None)
        );
        progress.begin_namespace();
        progress.records.add(1000);
        status(&progress, State::ResyncNamespace, 1);
        progress.records.add(1000);
        let namespace = status(&progress, State::ResyncTail, 3);
        assert_eq!(
            (namespace.bytes_sent, namespace.bytes_per_second),
            (2000, Some(500))
        );
        assert_eq!((namespace.bytes_total, namespace.left_ms), (None, None));
        assert_eq!(namespace.waits_for, LIMITED);
        progress.begin_content();
        let counting = status(&progress, State::ResyncContent, 4);
        assert_eq!((counting.files_total, counting.whole), (None, None));
        progress.content.start(10, 8000);
        for second in 5..10 {
            status(&progress, State::ResyncContent, second);
            progress.content.bytes_done.add(1000);
            progress.content.inodes_done.add(1);
        }
        let content = status(&progress, State::ResyncContent, 10);
        assert_eq!((content.files_total, content.files_done), (Some(10), 5));
        assert_eq!(
            (content.bytes_total, content.bytes_done),
            (Some(8000), 5000)
        );
        assert_eq!(
            (content.bytes_per_second, content.left_ms),
            (Some(1000), Some(5000))
        );
        progress.begin_proof(20);
        for second in 11..16 {
            status(&progress, State::ResyncContent, second);
            progress.proof.inodes_done.add(2);
        }
        let proving = status(&progress, State::ResyncContent, 16);
        let phase = (proving.phase, proving.whole);
        assert_eq!(phase, (ResyncPhase::Proving, Some(true)));
        let files = (proving.files_total, proving.files_done, proving.left_ms);
        assert_eq!(files, (Some(20), 10, Some(5000)));
        let finish = status(&progress, State::EnteringSync, 17);
        assert_eq!(
            (finish.files_done, finish.left_ms, finish.waits_for),
            (5, None, None)
        );
        assert_eq!(progress.status(State::Synced, Duration::ZERO, None), None);
    }

    #[test]
    fn the_counts_of_an_earlier_resync_are_not_shown() {
        let progress = ResyncMeter::default();
        progress.content.start(10, 8000);
        progress.begin_content();
        let next = status(&progress, State::ResyncContent, 0);
        assert_eq!((next.files_total, next.bytes_done), (None, 0));
    }
}
