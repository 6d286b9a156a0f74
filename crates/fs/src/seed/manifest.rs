//! The manifest of a seed.
//!
//! Invariants:
//! - The manifest gets its name once everything else of the seed is on stable storage.
//! - There is one text for each manifest. A text with any other byte is refused.

use std::io;

use lockstep_types::backing::{Backing, replace};
use lockstep_types::{DatastoreUuid, Osn, StoreId, SyncId, Timestamp};
use serde::{Deserialize, Serialize};

use super::error::SeedError;
use super::part::SeedPart;
use crate::store::SeedTotals;
use crate::text::hex;

/// The file in the directory of a seed.
pub const MANIFEST_FILE: &str = "seed.json";
/// The format that this program writes, and reads.
const FORMAT: u32 = 1;
/// Longest manifest, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedManifest {
    /// The format of the seed.
    pub lockstep_seed: u32,
    /// Where the seed comes from.
    pub origin: SeedOrigin,
    /// The moment that the seed shows.
    pub snapshot: SeedSnapshot,
    /// Counts.
    pub totals: SeedTotals,
    /// The file of the records.
    pub records: SeedPart,
    /// The list of the contents.
    pub contents: SeedPart,
    /// BLAKE3 of this text with an empty sum.
    pub sum: String,
}

/// The datastore of a seed, and the lineage of the copy from which the seed was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedOrigin {
    /// The datastore.
    pub datastore: DatastoreUuid,
    /// Its name on the server on which the seed was made. For people.
    pub name: String,
    /// See there.
    pub lineage: SeedLineage,
}

/// The names by which a secondary with the seed knows its primary (rule P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedLineage {
    /// The name of the primary's store, and of each copy of that store.
    pub store: StoreId,
    /// The newest sync of the copy from which the seed was made.
    pub sync: Option<SyncId>,
}

/// The snapshot that a seed shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedSnapshot {
    /// Its name when the seed was made. For people.
    pub name: String,
    /// When it was made, by the clock of the node that made it.
    pub time: Timestamp,
    /// The operation that made it.
    pub osn: Osn,
    /// Its serial number.
    pub serial: u32,
    /// Each inode has a number below this.
    pub inos_below: u64,
}

/// The one field that every format has.
#[derive(Deserialize)]
struct SeedFormat {
    lockstep_seed: u32,
}

impl SeedManifest {
    /// The manifest of these parts.
    pub(super) fn new(
        origin: SeedOrigin,
        snapshot: SeedSnapshot,
        totals: SeedTotals,
        [records, contents]: [SeedPart; 2],
    ) -> Self {
        let unsummed = Self {
            lockstep_seed: FORMAT,
            origin,
            snapshot,
            totals,
            records,
            contents,
            sum: String::new(),
        };
        let sum = unsummed.own_sum();
        Self { sum, ..unsummed }
    }

    fn own_sum(&self) -> String {
        let unsummed = Self {
            sum: String::new(),
            ..self.clone()
        };
        hex(blake3::hash(&unsummed.text()))
    }

    fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Puts the manifest on stable storage. The seed is complete then.
    pub(super) fn write(&self, seed: &dyn Backing) -> io::Result<()> {
        replace(seed, MANIFEST_FILE, &self.text())
    }

    /// The manifest of the seed in a directory.
    ///
    /// # Errors
    /// The directory has none, of another format, or a damaged one.
    pub fn read(seed: &dyn Backing) -> Result<Self, SeedError> {
        let file = match seed.open_to_read(MANIFEST_FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SeedError::NoManifest);
            }
            opened => opened.map_err(SeedError::reading(MANIFEST_FILE))?,
        };
        let mut text = vec![0; TEXT_BYTES_MAX];
        let length = file.read_at(0, &mut text);
        text.truncate(length.map_err(SeedError::reading(MANIFEST_FILE))?);
        Self::parse(&text)
    }

    fn parse(text: &[u8]) -> Result<Self, SeedError> {
        let damaged = || SeedError::damaged(MANIFEST_FILE, "it does not fit its sum");
        let number: SeedFormat = serde_json::from_slice(text).map_err(|_| damaged())?;
        if number.lockstep_seed != FORMAT {
            return Err(SeedError::OtherFormat {
                found: number.lockstep_seed,
                known: FORMAT,
            });
        }
        let manifest: Self = serde_json::from_slice(text).map_err(|_| damaged())?;
        let is_whole = manifest.sum == manifest.own_sum() && manifest.text() == text;
        if is_whole {
            Ok(manifest)
        } else {
            Err(damaged())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> SeedManifest {
        let origin = SeedOrigin {
            datastore: DatastoreUuid::from_bytes([7; 16]),
            name: "data".to_owned(),
            lineage: SeedLineage {
                store: StoreId::from_bytes([8; 16]),
                sync: Some(SyncId::next(None, [9; 16])),
            },
        };
        let snapshot = SeedSnapshot {
            name: "before".to_owned(),
            time: Timestamp {
                secs: 1_000_000_000,
                nanos: 5,
            },
            osn: Osn {
                sequence: 42,
                ..Osn::ZERO
            },
            serial: 3,
            inos_below: 1_000_001,
        };
        let part = |bytes| SeedPart {
            bytes,
            sum: hex(blake3::hash(b"part")),
        };
        let totals = SeedTotals {
            inodes: 4,
            files: 3,
            contents: 2,
            bytes: 5000,
        };
        SeedManifest::new(origin, snapshot, totals, [part(1), part(2)])
    }

    #[test]
    fn a_manifest_with_any_other_byte_is_refused() {
        let text = manifest().text();
        assert_eq!(SeedManifest::parse(&text).unwrap(), manifest());
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut flipped = text.clone();
                flipped[at] ^= 1 << bit;
                let refused = SeedManifest::parse(&flipped);
                assert!(refused.is_err(), "bit {bit} of byte {at}");
            }
            assert!(SeedManifest::parse(&text[..at]).is_err(), "cut at {at}");
        }
        let longer = [&text[..], b"\n"].concat();
        assert!(SeedManifest::parse(&longer).is_err());
    }

    #[test]
    fn a_manifest_of_another_format_says_so() {
        let text = String::from_utf8(manifest().text()).unwrap();
        let other = text.replace("\"lockstep_seed\": 1", "\"lockstep_seed\": 2");
        let refused = SeedManifest::parse(other.as_bytes()).unwrap_err();
        assert!(
            matches!(refused, SeedError::OtherFormat { found: 2, .. }),
            "{refused}"
        );
    }
}
