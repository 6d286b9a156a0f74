//! The markers of a failing disk, and the calls that are refused from then on.

use std::sync::atomic::AtomicI32;

use super::*;
use crate::backing::os_backing::OsBacking;
use lockstep_types::BootId;

/// A directory whose syncs fail with an error number, unless that is zero.
struct Failing {
    below: OsBacking,
    errno: Arc<AtomicI32>,
}

impl Backing for Failing {
    fn open(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        self.below.open(path)
    }
    fn open_or_create(&self, path: &str) -> io::Result<Arc<dyn BackingFile>> {
        self.below.open_or_create(path)
    }
    fn open_table(&self, path: &str, length: usize) -> io::Result<Arc<dyn BackingTable>> {
        self.below.open_table(path, length)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.below.remove(path)
    }
    fn remove_empty_dir(&self, path: &str) -> io::Result<bool> {
        self.below.remove_empty_dir(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.below.rename(from, to)
    }
    fn exists(&self, path: &str) -> io::Result<bool> {
        self.below.exists(path)
    }
    fn stat(&self, path: &str) -> io::Result<BackingStat> {
        self.below.stat(path)
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.below.list(path)
    }
    fn sync_dir(&self, _: &str) -> io::Result<()> {
        match self.errno.load(Ordering::SeqCst) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
    fn sync_all(&self) -> io::Result<()> {
        self.sync_dir("")
    }
    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
}

/// The last copy written.
#[derive(Default)]
struct MarkerCopy(Mutex<Option<Vec<u8>>>);

impl MarkerStore for MarkerCopy {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().clone())
    }
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        *self.0.lock() = Some(bytes.to_vec());
        Ok(())
    }
    fn remove(&self) -> io::Result<()> {
        *self.0.lock() = None;
        Ok(())
    }
}

struct Place {
    dir: tempfile::TempDir,
    errno: Arc<AtomicI32>,
    copy: Arc<MarkerCopy>,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            errno: Arc::default(),
            copy: Arc::default(),
        }
    }

    fn markers(&self) -> PoisonMarkers {
        let below: Arc<dyn Backing> = Arc::new(Failing {
            below: OsBacking::open(self.dir.path()).unwrap(),
            errno: Arc::clone(&self.errno),
        });
        PoisonMarkers::new(below, Some(self.copy.clone()))
    }

    fn guarded(&self) -> FencedBacking {
        let markers = self.markers();
        let below = Arc::clone(&markers.backing);
        let found = markers.read();
        let poison = Poison::new(
            markers,
            BootId::from_bytes([5; 16]),
            Box::new(Timestamp::default),
            found,
        );
        FencedBacking::new(below, Arc::new(poison))
    }
}

#[test]
fn a_sync_that_was_not_tried_does_no_harm() {
    let place = Place::new();
    let guarded = place.guarded();
    for errno in NOT_TRIED {
        place.errno.store(errno, Ordering::SeqCst);
        guarded.sync_dir(".").unwrap_err();
        assert!(!guarded.is_poisoned(), "{errno}");
    }
    place.errno.store(28, Ordering::SeqCst);
    guarded.sync_dir(".").unwrap_err();
    place.errno.store(0, Ordering::SeqCst);
    assert!(guarded.is_poisoned());
    assert!(guarded.sync_dir(".").is_err() && guarded.sync_all().is_err());
}

/// The marker tells an operator the cause, and either of the two places is enough.
#[test]
fn a_mark_is_found_in_both_places_until_it_is_taken_away() {
    let place = Place::new();
    place.guarded().poison("cannot sync content/00/07: EIO");
    let expected = DiskFailure {
        reason: "cannot sync content/00/07: EIO".to_owned(),
        time: "1970-01-01T00:00:00Z".to_owned(),
        boot: Some(BootId::from_bytes([5; 16])),
    };
    assert_eq!(place.markers().read(), Some(expected.clone()));
    let file = place.dir.path().join(MARKER_FILE);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(place.markers().read(), Some(expected.clone()));
    assert!(place.guarded().is_poisoned());
    // The disk has taken the name and no bytes.
    std::fs::write(&file, b"").unwrap();
    assert_eq!(place.markers().read(), Some(expected.clone()));
    place.markers().renew(&expected).unwrap();
    place.copy.remove().unwrap();
    assert_eq!(place.markers().read(), Some(expected));
    // A marker whose removal is not certain is restored.
    place.errno.store(5, Ordering::SeqCst);
    place.markers().remove().unwrap_err();
    assert!(file.exists());
    place.errno.store(0, Ordering::SeqCst);
    place.markers().remove().unwrap();
    assert_eq!(place.markers().read(), None);
    assert!(!place.guarded().is_poisoned());
}

#[test]
fn the_first_failure_is_the_one_that_is_told() {
    let place = Place::new();
    let guarded = place.guarded();
    guarded.poison("first");
    guarded.poison("second");
    assert_eq!(place.markers().read().unwrap().reason, "first");
    let refused = guarded.open_or_create("f").err().unwrap();
    assert!(refused.to_string().contains("first"), "{refused}");
}
