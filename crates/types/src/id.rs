//! Identifiers: which datastore, which file, which operation.
//!
//! Invariants: a [`Ino`] and a [`Generation`] are never zero; an [`Ino`] is never reused in the
//! life of a datastore; an [`Osn`] is never given to two operations.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The name of one mirrored directory, the same on both nodes, for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DatastoreUuid(Uuid);

impl DatastoreUuid {
    /// A fresh random identifier.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The identifier made of these sixteen bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The sixteen bytes of the identifier.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for DatastoreUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for DatastoreUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for DatastoreUuid {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self)
    }
}

/// Identity of one run of the machine, from its start to its restart: the kernel's boot id. It tells a loss of power from a
/// stop of the process (rule P12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId([u8; 16]);

impl BootId {
    /// The identity with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The identity of another run, which never was.
    #[must_use]
    pub fn of_no_run(self) -> Self {
        Self(self.0.map(|byte| !byte))
    }
}

/// Counts the changes of a datastore's state in one process. What was synced in one version of the state is not taken for
/// synced in another: there may be another node to sync then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateVersion(pub u64);

/// Names the store of a primary, and every copy of it (rule P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreId(Uuid);

impl StoreId {
    /// The name of sixteen bytes that nobody else has drawn.
    pub const fn from_bytes(drawn: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(drawn))
    }
}

/// Names one resync, and the sync that comes of it. The primary draws it when it begins one, and the secondary
/// notes it before anything of its copy is changed: two copies are in sync with each other only if their marks
/// name the same (rule P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncId {
    /// How many there were before it of this store.
    number: u64,
    /// What was drawn for it, as an older copy of the store may count on from there.
    drawn: Uuid,
}

impl SyncId {
    /// The one after the store's last, if there was any. `drawn`: sixteen bytes that nobody else has drawn.
    pub fn next(last: Option<Self>, drawn: [u8; 16]) -> Self {
        Self {
            number: last.map_or(0, |last| last.number.saturating_add(1)),
            drawn: Uuid::from_bytes(drawn),
        }
    }

    /// Whether a store whose last one is `last` cannot have begun this one: it comes after that, or is
    /// another with the same number.
    pub fn is_unknown_to(self, last: Option<Self>) -> bool {
        last.is_none_or(|last| {
            self.number > last.number || (self.number == last.number && self != last)
        })
    }
}

/// The number of a file within its datastore: the FUSE node id, the inode number and so part of
/// every file handle. The primary alone assigns it, counting up; it is the same on both nodes and
/// never reused. With the [`DatastoreUuid`] it is the paper's file id (section 3.4): the two are never
/// kept side by side, as a store, a mount and a message each are of one datastore and name it once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ino(NonZeroU64);

impl Ino {
    /// The root directory of every datastore.
    pub const ROOT: Self = Self(NonZeroU64::MIN);

    /// The inode number `raw`, or `None` for zero, which names no file.
    pub const fn new(raw: u64) -> Option<Self> {
        match NonZeroU64::new(raw) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number after this one; saturates at `u64::MAX`, which 500 years of a million creations
    /// a second do not reach.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// How often the datastore has changed its primary, starting at one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation(NonZeroU64);

impl Generation {
    /// The generation a datastore is born with.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// The generation `raw`, or `None` for zero, which is not one.
    pub const fn new(raw: u64) -> Option<Self> {
        match NonZeroU64::new(raw) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

/// Operation sequence number: orders all operations of a datastore (paper, section 3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Osn {
    /// The generation in which the operation entered.
    pub generation: Generation,
    /// Its place within that generation, counted by the primary from one.
    pub sequence: u64,
}

impl Osn {
    /// Comes before every operation of a datastore.
    pub const ZERO: Self = Self {
        generation: Generation::FIRST,
        sequence: 0,
    };

    /// The number after this one in the same generation.
    #[must_use]
    pub const fn next(self) -> Self {
        Self {
            generation: self.generation,
            sequence: self.sequence.saturating_add(1),
        }
    }
}

impl fmt::Display for Osn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.sequence)
    }
}

impl fmt::Debug for Osn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resync_is_known_to_who_has_begun_it_and_those_after() {
        let first = SyncId::next(None, [1; 16]);
        let [second, other] = [2, 3].map(|drawn| SyncId::next(Some(first), [drawn; 16]));
        assert!(!first.is_unknown_to(Some(first)) && !first.is_unknown_to(Some(second)));
        assert!(second.is_unknown_to(None) && second.is_unknown_to(Some(first)));
        assert!(second.is_unknown_to(Some(other)));
    }

    #[test]
    fn osn_orders_by_generation_first() {
        let late_in_old = Osn {
            generation: Generation::FIRST,
            sequence: 900,
        };
        let early_in_new = Osn {
            generation: Generation::new(2).unwrap(),
            sequence: 1,
        };
        assert!(late_in_old < early_in_new);
        assert!(Osn::ZERO < Osn::ZERO.next());
    }

    #[test]
    fn zero_is_no_identifier() {
        assert_eq!(Ino::new(0), None);
        assert_eq!(Generation::new(0), None);
        assert_eq!(Ino::new(1), Some(Ino::ROOT));
    }
}
