//! Identifiers of datastores, stores, resyncs, files and operations.
//!
//! Invariants: an [`Ino`] and a [`Generation`] are never zero. A datastore never reuses an [`Ino`]. No two operations
//! have the same [`Osn`].

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The name of one mirrored directory, the same on both nodes, forever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DatastoreUuid(Uuid);

impl DatastoreUuid {
    /// A fresh random identifier.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The identifier with these sixteen bytes.
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

/// Identity of one run of the machine, from its start to its restart: the kernel's boot id. The boot id tells a loss of
/// power from a stop of the process (rule P12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId([u8; 16]);

impl BootId {
    /// The identity with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the identity.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The identity of another run, which never took place.
    #[must_use]
    pub fn of_no_run(self) -> Self {
        Self(self.0.map(|byte| !byte))
    }
}

/// Identity of the witness that a node asks for a datastore. Both nodes must ask the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WitnessId([u8; 32]);

impl WitnessId {
    /// Any cluster of etcd: its members may have other addresses for each node.
    pub const ETCD: Self = Self([0; 32]);

    /// The witness whose certificate has this digest.
    pub const fn of_certificate(digest: [u8; 32]) -> Self {
        Self(digest)
    }
}

/// Counts the changes of a datastore's state in one process. A sync in one version of the state does not count in
/// another version: the later version may have another node to sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateVersion(pub u64);

/// Names the store of a primary, and every copy of it (rule P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreId(Uuid);

impl StoreId {
    /// The name with sixteen bytes that are `random`, so that no other store has them.
    pub const fn from_bytes(random: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(random))
    }

    /// The bytes of the name.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

/// Tells clients whether unsynced operations may be missing: the write verifier of NFS (RFC 1813, section 3.3.21). Each copy
/// has one, both copies in sync have the same, and a copy that may have lost operations gets another one (rule P22).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WriteVerifier(u64);

impl WriteVerifier {
    /// No verifier: of a store that was last used by a version without verifiers.
    pub const NONE: Self = Self(0);

    /// The verifier from sixteen bytes that are `random`, so that no copy has had it before.
    pub fn from_bytes(random: [u8; 16]) -> Self {
        // JSON readers keep 53 bits of a number.
        let number = u128::from_be_bytes(random) >> (u128::BITS - 53);
        Self(u64::try_from(number).unwrap_or(u64::MAX) | 1)
    }

    /// The number: odd, and less than 2⁵³.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Names a sync: the state "in sync" that results from one resync or one recovery. The primary makes the name before it begins.
/// The secondary records the name before a resync changes its copy, or before a recovery begins. Two copies are in sync with
/// each other only if their marks have the same name (rule P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncId {
    /// Number of earlier syncs of this store.
    number: u64,
    /// A random value: an older copy of the store may count on from the same number.
    #[serde(rename = "drawn")]
    nonce: Uuid,
}

impl SyncId {
    /// The name of the sync after `last`, the store's last one. `nonce` is sixteen random bytes, so that no other sync has
    /// them.
    pub fn next(last: Option<Self>, nonce: [u8; 16]) -> Self {
        Self {
            number: last.map_or(0, |last| last.number.saturating_add(1)),
            nonce: Uuid::from_bytes(nonce),
        }
    }

    /// The number and the random value, for a record of fixed length.
    pub const fn to_words(self) -> (u64, [u8; 16]) {
        (self.number, self.nonce.into_bytes())
    }

    /// The name with this number and this random value.
    pub const fn from_words(number: u64, nonce: [u8; 16]) -> Self {
        Self {
            number,
            nonce: Uuid::from_bytes(nonce),
        }
    }

    /// Whether a store with the last sync `last` cannot have begun this sync: this sync comes after `last`, or is another
    /// sync with the same number.
    pub fn is_unknown_to(self, last: Option<Self>) -> bool {
        last.is_none_or(|last| {
            self.number > last.number || (self.number == last.number && self != last)
        })
    }
}

/// The number of a file within its datastore: the FUSE node id, the inode number and so part of every file handle. Only
/// the primary assigns numbers, counting up. A number is the same on both nodes and never reused. The [`DatastoreUuid`]
/// and the number together are the paper's file id (section 3.4). No value holds both: a store, a mount and a message
/// each belong to one datastore and name it once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ino(NonZeroU64);

impl Ino {
    /// The root directory of every datastore.
    pub const ROOT: Self = Self(NonZeroU64::MIN);

    /// The number above all others.
    pub const LAST: Self = Self(NonZeroU64::MAX);

    /// The inode number `raw`; `None` for zero, which names no file.
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

    /// The next number. Saturates at `u64::MAX`, which a million creations a second do not reach in 500 years.
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

/// Counts the changes of the datastore's primary, starting at one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Generation(NonZeroU64);

impl Generation {
    /// The first generation of every datastore.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// No datastore reaches a later generation.
    pub const LAST: Self = Self(NonZeroU64::MAX);

    /// The generation `raw`; `None` for zero, which is no generation.
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

    /// The generation after this one. The last generation has none, and returns itself.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
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
    /// The operation's place within the generation; the primary counts from one.
    pub sequence: u64,
}

impl Osn {
    /// A number before every operation of a datastore.
    pub const ZERO: Self = Self {
        generation: Generation::FIRST,
        sequence: 0,
    };

    /// A number behind every operation of a datastore.
    pub const LAST: Self = Self {
        generation: Generation::LAST,
        sequence: u64::MAX,
    };

    /// The next number in the same generation.
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
    use serde::de::value::{self, MapDeserializer};

    use super::*;

    #[test]
    fn a_resync_is_known_to_the_stores_that_began_it_or_a_later_one() {
        let first = SyncId::next(None, [1; 16]);
        let [second, other] = [2, 3].map(|nonce| SyncId::next(Some(first), [nonce; 16]));
        assert!(!first.is_unknown_to(Some(first)) && !first.is_unknown_to(Some(second)));
        assert!(second.is_unknown_to(None) && second.is_unknown_to(Some(first)));
        assert!(second.is_unknown_to(Some(other)));
    }

    /// `role.json` has this key (docs/on-disk.md).
    #[test]
    fn the_nonce_of_a_sync_id_keeps_its_key() {
        let fields = MapDeserializer::<_, value::Error>::new([("unknown", 0u64)].into_iter());
        let error = SyncId::deserialize(fields).unwrap_err().to_string();
        assert!(error.ends_with("expected `number` or `drawn`"), "{error}");
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
