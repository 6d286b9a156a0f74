//! Whether the disk of the store answers: a probe, and the knowledge from it (rule R12).
//!
//! A disk that hangs reports no error: its calls do not return. So a thread of its own asks the disk from time to time to
//! write and sync one block, and another thread looks how long that takes (`role/disk_stall.rs`). No operation of a client
//! costs anything for that.
//!
//! Invariant: time counts only while this process runs. A process that was suspended does not blame its disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockstep_types::backing::{Backing, BackingFile};
use lockstep_types::limits::BLOCK_BYTES;
use lockstep_types::time::millis;
use parking_lot::Mutex;

use crate::config::ConfigHandle;
use crate::durable::SCRATCH_PREFIX;
use crate::host::Host;
use crate::host::signal::Signal;
use crate::report::DiskStallStatus;

/// The knowledge that this node has of its own disk, and of the disk of the other node.
pub(crate) struct DiskWatch {
    /// Has the limit of an answer.
    config: Arc<ConfigHandle>,
    /// Time for which the probe under way has had no answer.
    silent_ms: AtomicU64,
    /// The same of the other node, by its last word.
    peer_silent_ms: AtomicU64,
    /// This node has stopped serving for its disk.
    has_given_way: AtomicBool,
}

/// An answer of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskAnswer {
    /// Time before the answer without one, in milliseconds. Zero for an answer before the first look.
    pub silent_ms: u64,
    /// The disk has hung.
    pub was_stuck: bool,
}

impl DiskWatch {
    /// A watch over a disk that has just answered.
    pub fn new(config: &Arc<ConfigHandle>) -> Self {
        Self {
            config: Arc::clone(config),
            silent_ms: AtomicU64::new(0),
            peer_silent_ms: AtomicU64::new(0),
            has_given_way: AtomicBool::new(false),
        }
    }

    /// The limit of an answer; `None` if no thread watches.
    pub fn limit(&self) -> Option<Duration> {
        self.config.current().policies.disk_stall_limit.get()
    }

    /// Time without an answer of this node's disk, in milliseconds.
    pub fn silent_ms(&self) -> u64 {
        self.silent_ms.load(Ordering::Acquire)
    }

    /// Adds time without an answer.
    pub fn note_silence(&self, time: Duration) {
        self.silent_ms.fetch_add(millis(time), Ordering::AcqRel);
    }

    /// The disk has answered.
    pub fn note_answer(&self) -> DiskAnswer {
        let was_stuck = self.is_stuck();
        self.has_given_way.store(false, Ordering::Release);
        DiskAnswer {
            silent_ms: self.silent_ms.swap(0, Ordering::AcqRel),
            was_stuck,
        }
    }

    /// Whether the disk of this node hangs.
    pub fn is_stuck(&self) -> bool {
        self.stuck_for_more_than().is_some()
    }

    /// The limit, if the disk of this node has not answered for longer.
    pub fn stuck_for_more_than(&self) -> Option<Duration> {
        self.limit()
            .filter(|limit| self.silent_ms() >= millis(*limit))
    }

    /// Notes the word of the other node on its own disk.
    pub fn note_peer(&self, silent_ms: u64) {
        self.peer_silent_ms.store(silent_ms, Ordering::Release);
    }

    /// Time for which the disk of the other node has not answered, in milliseconds, if that is too long.
    pub fn peer_stuck_ms(&self) -> Option<u64> {
        let silent_ms = self.peer_silent_ms.load(Ordering::Acquire);
        let limit = self.limit()?;
        (silent_ms >= millis(limit)).then_some(silent_ms)
    }

    /// Whether the disk of the other node may hang, too. Both disks may have begun to hang at once, and the other node asks
    /// its own disk a little later than this node.
    pub fn may_peer_hang(&self) -> bool {
        let limit = self.limit().map_or(0, millis);
        self.peer_silent_ms.load(Ordering::Acquire) > limit / 2
    }

    /// This node stops serving. Returns whether that is new.
    pub fn give_way(&self) -> bool {
        !self.has_given_way.swap(true, Ordering::AcqRel)
    }

    /// Whether this node has stopped serving for its disk.
    pub fn has_given_way(&self) -> bool {
        self.has_given_way.load(Ordering::Acquire)
    }

    /// The status for operators; `None` while the disk answers.
    pub fn status(&self) -> Option<DiskStallStatus> {
        self.is_stuck().then(|| DiskStallStatus {
            silent_ms: self.silent_ms(),
            gave_way: self.has_given_way(),
        })
    }
}

/// Asks a disk whether it answers: one block of a file without a name is overwritten and synced.
pub(crate) struct DiskProbe {
    backing: Arc<dyn Backing>,
    file: Mutex<Option<Arc<dyn BackingFile>>>,
    is_under_way: AtomicBool,
    /// Raised when a probe is over.
    pub over: Signal,
}

/// A probe under way, until this is dropped.
struct ProbeUnderWay(Arc<DiskProbe>);

impl Drop for ProbeUnderWay {
    fn drop(&mut self) {
        self.0.is_under_way.store(false, Ordering::Release);
        self.0.over.raise();
    }
}

impl DiskProbe {
    /// A probe that has not begun.
    pub fn new(backing: Arc<dyn Backing>) -> Arc<Self> {
        Arc::new(Self {
            backing,
            file: Mutex::default(),
            is_under_way: AtomicBool::new(false),
            over: Signal::default(),
        })
    }

    /// Whether the disk has not answered yet.
    pub fn is_under_way(&self) -> bool {
        self.is_under_way.load(Ordering::Acquire)
    }

    /// Asks the disk, on another thread. One probe at a time is under way.
    pub fn begin(self: &Arc<Self>, host: &dyn Host) {
        self.is_under_way.store(true, Ordering::Release);
        let under_way = ProbeUnderWay(Arc::clone(self));
        host.spawn_alone(Box::new(move || {
            // An error is an answer, too. The fence of the store notes a failed disk (rule P16).
            if let Err(error) = under_way.0.ask() {
                tracing::debug!(%error, "a probe of the disk");
            }
        }));
    }

    fn ask(&self) -> io::Result<()> {
        let file = self.file()?;
        file.write_at(0, &[0; BLOCK_BYTES])?;
        file.sync()
    }

    fn file(&self) -> io::Result<Arc<dyn BackingFile>> {
        let mut file = self.file.lock();
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        let name = format!("{SCRATCH_PREFIX}probe");
        let made = self.backing.open_or_create(&name)?;
        self.backing.remove(&name)?;
        Ok(Arc::clone(file.insert(made)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use lockstep_fs::os_backing::OsBacking;
    use lockstep_types::DatastoreUuid;
    use lockstep_types::settings::Role;

    use super::*;
    use crate::config::{DatastoreConfig, DiskStallLimit, Policies};
    use crate::host::OsHost;

    const LIMIT: Duration = Duration::from_secs(2);

    fn config(limit: Option<Duration>) -> DatastoreConfig {
        let places = ["/store", "/mount"].map(PathBuf::from);
        DatastoreConfig {
            policies: Policies {
                disk_stall_limit: DiskStallLimit::new(limit),
                ..Policies::default()
            },
            ..DatastoreConfig::new("alpha", DatastoreUuid::random(), places, Role::Primary)
        }
    }

    fn watch(limit: Option<Duration>) -> DiskWatch {
        DiskWatch::new(&Arc::new(ConfigHandle::new(config(limit))))
    }

    #[test]
    fn a_new_limit_is_in_force_at_once() {
        let watch = watch(Some(LIMIT));
        watch.note_silence(LIMIT / 2);
        assert!(!watch.is_stuck());
        watch.config.replace(config(Some(LIMIT / 2))).unwrap_err();
        let same = DatastoreConfig {
            uuid: watch.config.current().uuid,
            ..config(Some(LIMIT / 2))
        };
        watch.config.replace(same).unwrap();
        assert!(watch.is_stuck());
    }

    #[test]
    fn a_disk_hangs_from_the_limit_on_until_it_answers() {
        let watch = watch(Some(LIMIT));
        watch.note_silence(LIMIT / 2);
        assert!(!watch.is_stuck() && watch.status().is_none());
        watch.note_silence(LIMIT / 2);
        assert_eq!(watch.stuck_for_more_than(), Some(LIMIT));
        assert!(watch.give_way() && !watch.give_way());
        assert!(watch.status().unwrap().gave_way);
        assert_eq!(
            watch.note_answer(),
            DiskAnswer {
                silent_ms: millis(LIMIT),
                was_stuck: true,
            }
        );
        assert!(!watch.is_stuck() && !watch.has_given_way());
        assert_eq!(watch.note_answer().silent_ms, 0);
    }

    #[test]
    fn a_peer_may_hang_before_it_does() {
        let watch = watch(Some(LIMIT));
        for (silent_ms, may_hang, hangs) in [
            (1000, false, false),
            (1001, true, false),
            (2000, true, true),
        ] {
            watch.note_peer(silent_ms);
            assert_eq!(
                (watch.may_peer_hang(), watch.peer_stuck_ms().is_some()),
                (may_hang, hangs)
            );
        }
    }

    #[test]
    fn without_a_limit_no_disk_hangs() {
        let watch = watch(None);
        watch.note_silence(Duration::from_secs(1_000_000));
        assert!(!watch.is_stuck());
    }

    #[test]
    fn a_probe_ends_on_a_disk_that_answers_and_leaves_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let host = OsHost::start("test").unwrap();
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(dir.path()).unwrap());
        let probe = DiskProbe::new(Arc::clone(&backing));
        for _ in 0..3 {
            probe.begin(&host);
            while probe.is_under_way() {
                std::thread::yield_now();
            }
            assert!(probe.file.lock().is_some());
            assert_eq!(backing.list(".").unwrap(), Vec::<String>::new());
        }
        host.stop();
    }
}
