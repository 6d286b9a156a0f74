//! The last moment at which this copy was in sync as a secondary, by the wall clock, for operators.
//!
//! An operator who promotes this node has to know how far the copy goes back in time. The moment is kept in a file of the store,
//! so that a restart does not forget it.
//!
//! Invariant: no rule reads the moment. Wall clocks jump, the file is not synced, and a power loss may leave an earlier moment.

use std::io;
use std::sync::Arc;

use lockstep_types::Timestamp;
use lockstep_types::backing::Backing;
use parking_lot::Mutex;

/// The file in the store.
const FILE: &str = "contact";
/// Seconds between two notes in the file while the nodes are in sync.
const NOTE_SECONDS: i64 = 10;
/// Longest text in the file, in bytes. A longer one is not of this version.
const TEXT_BYTES_MAX: usize = 64;

/// See the head of this file.
pub(crate) struct Contact {
    backing: Arc<dyn Backing>,
    moments: Mutex<Moments>,
}

struct Moments {
    /// The last moment, as a text in UTC.
    last: Option<String>,
    /// The moment in the file, in seconds, if this process has written it.
    noted: Option<i64>,
}

impl Contact {
    /// The contact of a store. A file that cannot be read is treated as missing: only operators look at the moment.
    pub fn of(backing: &Arc<dyn Backing>) -> Self {
        let last = read(&**backing).ok().flatten();
        Self {
            backing: Arc::clone(backing),
            moments: Mutex::new(Moments { last, noted: None }),
        }
    }

    /// This secondary is in sync at `time`.
    ///
    /// # Errors
    /// If the file cannot be written. The moment is remembered in memory nevertheless.
    pub fn note(&self, time: Timestamp) -> io::Result<()> {
        let text = time.utc();
        {
            let mut moments = self.moments.lock();
            moments.last = Some(text.clone());
            let is_noted = |noted: i64| time.secs.abs_diff(noted) < NOTE_SECONDS.unsigned_abs();
            if moments.noted.is_some_and(is_noted) {
                return Ok(());
            }
            moments.noted = Some(time.secs);
        }
        write(&*self.backing, &text)
    }

    /// The last moment, in UTC.
    pub fn last(&self) -> Option<String> {
        self.moments.lock().last.clone()
    }
}

/// Notes in a new store the moment that its copy shows.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn begin(backing: &dyn Backing, time: Timestamp) -> io::Result<()> {
    write(backing, &time.utc())
}

fn write(backing: &dyn Backing, text: &str) -> io::Result<()> {
    let file = backing.open_or_create(FILE)?;
    file.set_len(text.len() as u64)?;
    file.write_at(0, text.as_bytes())
}

fn read(backing: &dyn Backing) -> io::Result<Option<String>> {
    if !backing.exists(FILE)? {
        return Ok(None);
    }
    let mut bytes = [0; TEXT_BYTES_MAX];
    let length = backing.open(FILE)?.read_at(0, &mut bytes)?;
    let text = bytes.get(..length).unwrap_or_default();
    let text = String::from_utf8_lossy(text).into_owned();
    let is_moment = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    Ok(is_moment.then_some(text))
}

#[cfg(test)]
mod tests {
    use lockstep_fs::os_backing::OsBacking;

    use super::*;

    const fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    #[test]
    fn the_last_moment_in_sync_outlives_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(directory.path()).unwrap());
        let contact = Contact::of(&backing);
        assert_eq!(contact.last(), None);
        contact.note(at(1_000_000_000)).unwrap();
        contact.note(at(1_000_000_003)).unwrap();
        assert_eq!(contact.last().unwrap(), "2001-09-09T01:46:43Z");
        // The file is written every ten seconds only.
        assert_eq!(
            Contact::of(&backing).last().unwrap(),
            "2001-09-09T01:46:40Z"
        );
        contact.note(at(1_000_000_012)).unwrap();
        assert_eq!(
            Contact::of(&backing).last().unwrap(),
            "2001-09-09T01:46:52Z"
        );
    }

    #[test]
    fn a_damaged_file_is_no_moment() {
        let directory = tempfile::tempdir().unwrap();
        let backing: Arc<dyn Backing> = Arc::new(OsBacking::open(directory.path()).unwrap());
        std::fs::write(directory.path().join(FILE), "\u{1b}[2J\n").unwrap();
        assert_eq!(Contact::of(&backing).last(), None);
    }
}
