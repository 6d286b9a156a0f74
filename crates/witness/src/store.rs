//! The store of the own witness: the records of all datastores, in the checked key-value store of the nodes.
//!
//! The key-value store compares a checksum with every block that it reads, and tears no commit by a loss of power
//! (`lockstep_fs::kv`). So a damaged record is an error.
//!
//! Invariants:
//! - An empty store is made by [`WitnessStore::create`] only. A missing store is an error: a witness that lost its
//!   records would grant claims that it must refuse.
//! - Each store has an identity of its own, drawn when it is made, and drawn again when an operator removes a record.
//!   The clients see by it that a record may be missing on purpose.
//! - A record that is told is on stable storage, also if an earlier process failed to sync it. A commit syncs its
//!   blocks before it writes the header that leads to them, and opening writes and syncs the header.
//! - One process has the store.
//! - The file has the space on the disk that its records may take.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockstep_fs::kv::redb::{RedbKv, RedbOptions};
use lockstep_fs::kv::{Direction, Kv, KvError};
use lockstep_fs::os_backing::OsBacking;
use lockstep_roles::{Claim, ClaimFault, WitnessRecord};
use lockstep_types::DatastoreUuid;
use lockstep_types::backing::{Backing, draft_of};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::entry::{EntryError, WitnessEntry};
use crate::pair::NodePair;

/// Most datastores of one witness.
pub const DATASTORES_MAX: usize = 4096;

/// The file with the records.
const FILE: &str = "records";

/// Key of the identity of the store.
const ID_KEY: &[u8] = b"id";

/// Key of the number of proofs.
const PROOF_KEY: &[u8] = b"proof";

/// First byte of the key of a record. The bytes of the datastore's UUID follow.
const RECORD_KEY: u8 = b'r';

/// Space on the disk that the file has from its making on, in bytes: more than the records of [`DATASTORES_MAX`] datastores
/// ever take. So a claim is recorded on a full disk.
const RESERVED_BYTES: u64 = 16 << 20;

/// Most memory for pages of the file, in bytes.
const CACHE_BYTES: usize = 4 << 20;

/// Identity of one store, drawn when the store was made, and again when an operator has removed a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WitnessStoreId(Uuid);

impl WitnessStoreId {
    /// The identity with these bytes.
    pub(crate) const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The sixteen bytes of the identity.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for WitnessStoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn disk_cure(source: &KvError) -> &'static str {
    if source.is_full_disk() {
        "make room on that disk"
    } else {
        "check the disk, then start the witness again"
    }
}

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WitnessStoreError {
    /// The directory of the store cannot be used.
    #[error(
        "cannot {operation} the directory {}: {source}\n  \
         cure: make it accessible to the user of the witness; if its disk is not mounted, mount it", path.display()
    )]
    Directory {
        /// The failed step.
        operation: &'static str,
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process has the store.
    #[error("another process uses the store {}\n  cure: stop that witness first", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// There is no store.
    #[error(
        "there are no records of a witness in {place}\n  \
         cure: mount the disk of the store; if the records are lost, see \"A lost witness\" in docs/operations/witness.md"
    )]
    Missing {
        /// The directory.
        place: String,
    },
    /// A store exists in the place of a new one.
    #[error(
        "there are records of a witness in {place} already\n  cure: choose another directory for the new store"
    )]
    Exists {
        /// The directory.
        place: String,
    },
    /// The records are not the written ones.
    #[error(
        "the records of the witness in {place} are damaged: {what}\n  \
         cure: check the disk, then see \"A lost witness\" in docs/operations/witness.md"
    )]
    Damaged {
        /// The directory.
        place: String,
        /// The defect.
        what: String,
    },
    /// The record of one datastore is not understood.
    #[error(
        "the record of datastore {datastore} cannot be used: {source}\n  \
         cure: use a newer lockstep if one has run here, else see \"A lost witness\" in docs/operations/witness.md"
    )]
    Entry {
        /// The datastore.
        datastore: DatastoreUuid,
        /// The defect.
        source: EntryError,
    },
    /// The disk failed.
    #[error(
        "the disk of the witness's store in {place} fails: {source}\n  cure: {}",
        disk_cure(source)
    )]
    Disk {
        /// The directory.
        place: String,
        /// The error of the key-value store.
        source: KvError,
    },
    /// The record belongs to another pair of nodes.
    #[error(
        "datastore {datastore} belongs to the nodes {stored}\n  \
         cure: check `fingerprint` of [datastore.peer] on both nodes; if a node has a new identity, see \"A node with a \
         new identity\" in docs/operations/witness.md"
    )]
    OtherPair {
        /// The datastore.
        datastore: DatastoreUuid,
        /// The nodes of the record.
        stored: NodePair,
    },
    /// The claim breaks a rule.
    #[error("{0}\n  cure: use the same version of lockstep on both nodes, and report this fault")]
    Fault(#[from] ClaimFault),
    /// The witness has as many datastores as it can keep.
    #[error(
        "this witness keeps the records of {DATASTORES_MAX} datastores, and takes no more\n  cure: use a second witness"
    )]
    Full,
}

impl WitnessStoreError {
    /// Whether the store itself has failed: no call is answered any more. Other errors concern one call, or a later
    /// call may find the disk in order.
    pub const fn is_failure(&self) -> bool {
        let is_stopped = matches!(
            self,
            Self::Disk {
                source: KvError::Stopped { .. },
                ..
            }
        );
        is_stopped || matches!(self, Self::Damaged { .. } | Self::Missing { .. })
    }

    /// Whether the only cause is missing space. Nothing was changed then.
    pub fn is_full_disk(&self) -> bool {
        matches!(self, Self::Disk { source, .. } if source.is_full_disk())
    }
}

/// The records of all datastores. All calls may come from many threads at once.
pub struct WitnessStore {
    place: String,
    kv: RedbKv,
    id: Mutex<WitnessStoreId>,
    /// Number of records. Held by the one claim at a time.
    claims: Mutex<usize>,
    /// Whether the file has its space on the disk.
    is_reserved: AtomicBool,
    /// Number of proofs since the start.
    proofs: AtomicU64,
    /// The locked file; `None` in tests on a simulated disk.
    _lock: Option<File>,
}

impl WitnessStore {
    /// Makes an empty store in a directory, which must exist.
    ///
    /// # Errors
    /// [`WitnessStoreError::Exists`] if the directory has one. Any error leaves no new file.
    pub fn create(path: &Path) -> Result<Self, WitnessStoreError> {
        let backing = open_directory(path)?;
        let is_new = !path.join(FILE).exists();
        let store = Self::create_on(&backing, &path.display().to_string()).inspect_err(|_| {
            for name in [FILE, &draft_of(FILE)].iter().filter(|_| is_new) {
                // The error of the making tells more than an error of the removal.
                let _ = fs::remove_file(path.join(name));
            }
        })?;
        Ok(Self {
            _lock: Some(lock(path)?),
            ..store
        })
    }

    /// Opens the store in a directory, and checks all of it.
    ///
    /// # Errors
    /// A [`WitnessStoreError`]. No record is changed then.
    pub fn open(path: &Path) -> Result<Self, WitnessStoreError> {
        let lock = lock(path)?;
        let store = Self::open_on(&open_directory(path)?, &path.display().to_string())?;
        Ok(Self {
            _lock: Some(lock),
            ..store
        })
    }

    /// The same as [`Self::create`] on any disk. `place` stands in errors.
    ///
    /// # Errors
    /// A [`WitnessStoreError`].
    pub fn create_on(backing: &dyn Backing, place: &str) -> Result<Self, WitnessStoreError> {
        let failed = |source| failed(place, source);
        let kv = RedbKv::create(backing, FILE, options()).map_err(failed)?;
        let id = WitnessStoreId(Uuid::new_v4());
        kv.commit_durable(&mut [(ID_KEY, Some(&id.as_bytes()[..]))].into_iter())
            .map_err(failed)?;
        let store = Self::new(place, kv, id, 0);
        store.reserve()?;
        Ok(store)
    }

    /// The same as [`Self::open`] on any disk. `place` stands in errors.
    ///
    /// # Errors
    /// A [`WitnessStoreError`]. No record is changed then.
    pub fn open_on(backing: &dyn Backing, place: &str) -> Result<Self, WitnessStoreError> {
        let failed = |source| failed(place, source);
        let mut kv = RedbKv::open(backing, FILE, options()).map_err(failed)?;
        kv.check().map_err(failed)?;
        let id = kv.get(ID_KEY).map_err(failed)?;
        let id = id.as_deref().and_then(|bytes| Uuid::from_slice(bytes).ok());
        let id = id.ok_or_else(|| WitnessStoreError::Damaged {
            place: place.to_owned(),
            what: "the store has no identity; was its making interrupted?".to_owned(),
        })?;
        let store = Self::new(place, kv, WitnessStoreId(id), 0);
        *store.claims.lock() = store.list()?.len();
        match store.reserve() {
            // A witness whose disk is full starts, and says so: it knows which node serves.
            Err(error) if !error.is_full_disk() => Err(error),
            _ => Ok(store),
        }
    }

    /// Reserves the space of the file, unless that is done, or the file system cannot do it.
    fn reserve(&self) -> Result<(), WitnessStoreError> {
        if self.is_reserved.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.kv.reserve(RESERVED_BYTES) {
            Err(KvError::Io { source, .. }) if source.kind() == io::ErrorKind::Unsupported => {
                tracing::warn!(
                    place = self.place,
                    "the file system of the records reserves no space"
                );
            }
            outcome => outcome.map_err(|source| failed(&self.place, source))?,
        }
        self.is_reserved.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Proves that a claim could be recorded now, by a durable change of the same kind.
    ///
    /// # Errors
    /// A [`WitnessStoreError`].
    pub fn prove(&self) -> Result<(), WitnessStoreError> {
        self.reserve()?;
        let number = self.proofs.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let mut change = std::iter::once((PROOF_KEY, Some(&number[..])));
        let committed = self.kv.commit_durable(&mut change);
        committed.map_err(|source| failed(&self.place, source))
    }

    fn new(place: &str, kv: RedbKv, id: WitnessStoreId, count: usize) -> Self {
        Self {
            place: place.to_owned(),
            kv,
            id: Mutex::new(id),
            claims: Mutex::new(count),
            is_reserved: AtomicBool::new(false),
            proofs: AtomicU64::new(0),
            _lock: None,
        }
    }

    /// The identity of the store.
    pub fn id(&self) -> WitnessStoreId {
        *self.id.lock()
    }

    /// The record of a datastore, if there is one.
    ///
    /// # Errors
    /// A [`WitnessStoreError`]; [`WitnessStoreError::OtherPair`] if the record belongs to other nodes.
    pub fn read(
        &self,
        datastore: DatastoreUuid,
        pair: NodePair,
    ) -> Result<Option<WitnessRecord>, WitnessStoreError> {
        let found = self.kv.get(&key(datastore));
        let Some(text) = found.map_err(|source| failed(&self.place, source))? else {
            return Ok(None);
        };
        Ok(Some(stored_record(datastore, pair, &text)?))
    }

    /// Makes a claim, and returns the record after it. A changed record is on stable storage then.
    ///
    /// # Errors
    /// A [`WitnessStoreError`]. After [`WitnessStoreError::Disk`] the claim may have been granted.
    pub fn claim(
        &self,
        datastore: DatastoreUuid,
        pair: NodePair,
        claim: &Claim,
    ) -> Result<Option<WitnessRecord>, WitnessStoreError> {
        claim.check()?;
        let mut count = self.claims.lock();
        let current = self.read(datastore, pair)?;
        let next = claim.apply(current);
        let Some(record) = next.filter(|_| next != current) else {
            return Ok(next);
        };
        if current.is_none() && *count >= DATASTORES_MAX {
            return Err(WitnessStoreError::Full);
        }
        let text = stored_text(datastore, WitnessEntry { pair, record })?;
        let key = key(datastore);
        let mut change = std::iter::once((&key[..], Some(&text[..])));
        let committed = self.kv.commit_durable(&mut change);
        committed.map_err(|source| failed(&self.place, source))?;
        *count += usize::from(current.is_none());
        Ok(next)
    }

    /// All records, in the order of the UUIDs.
    ///
    /// # Errors
    /// A [`WitnessStoreError`].
    pub fn list(&self) -> Result<Vec<(DatastoreUuid, WitnessEntry)>, WitnessStoreError> {
        let decoded = |(datastore, text): (DatastoreUuid, Vec<u8>)| {
            decoded(datastore, &text).map(|entry| (datastore, entry))
        };
        self.texts()?.into_iter().map(decoded).collect()
    }

    /// Removes the record of a datastore, durably, and gives the store a new identity. Returns whether there was a
    /// record.
    ///
    /// # Errors
    /// A [`WitnessStoreError`].
    pub fn forget(&self, datastore: DatastoreUuid) -> Result<bool, WitnessStoreError> {
        let failed = |source| failed(&self.place, source);
        let mut count = self.claims.lock();
        let key = key(datastore);
        if self.kv.get(&key).map_err(failed)?.is_none() {
            return Ok(false);
        }
        let id = WitnessStoreId(Uuid::new_v4());
        let changes = [(&key[..], None), (ID_KEY, Some(&id.as_bytes()[..]))];
        self.kv
            .commit_durable(&mut changes.into_iter())
            .map_err(failed)?;
        *self.id.lock() = id;
        *count = count.saturating_sub(1);
        Ok(true)
    }

    /// The stored texts, in the order of the UUIDs.
    fn texts(&self) -> Result<Vec<(DatastoreUuid, Vec<u8>)>, WitnessStoreError> {
        let mut texts = Vec::new();
        let mut is_foreign = false;
        let scanned = self.kv.scan(
            Direction::Up,
            Bound::Included(&[RECORD_KEY]),
            Bound::Excluded(&[RECORD_KEY + 1]),
            &mut |key, text| {
                match key.get(1..).and_then(|uuid| uuid.try_into().ok()) {
                    Some(uuid) => texts.push((DatastoreUuid::from_bytes(uuid), text.to_vec())),
                    None => is_foreign = true,
                }
                ControlFlow::Continue(())
            },
        );
        scanned.map_err(|source| failed(&self.place, source))?;
        if is_foreign {
            return Err(WitnessStoreError::Damaged {
                place: self.place.clone(),
                what: "a key is not that of a record".to_owned(),
            });
        }
        Ok(texts)
    }
}

fn open_directory(path: &Path) -> Result<OsBacking, WitnessStoreError> {
    OsBacking::open(path).map_err(|source| WitnessStoreError::Directory {
        operation: "open",
        path: path.to_owned(),
        source,
    })
}

/// Locks the file of a store, which only its owner can open.
fn lock(path: &Path) -> Result<File, WitnessStoreError> {
    let place = path.display().to_string();
    let failed = |operation, source| WitnessStoreError::Directory {
        operation,
        path: path.to_owned(),
        source,
    };
    let file = File::open(path.join(FILE)).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => WitnessStoreError::Missing { place },
        _ => failed("open the records in", source),
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(WitnessStoreError::InUse { path: path.into() }),
        Err(TryLockError::Error(source)) => Err(failed("lock the records in", source)),
    }
}

const fn options() -> RedbOptions {
    RedbOptions {
        cache_bytes: CACHE_BYTES,
    }
}

fn key(datastore: DatastoreUuid) -> [u8; 17] {
    let mut key = [RECORD_KEY; 17];
    let (_, uuid) = key.split_at_mut(1);
    uuid.copy_from_slice(datastore.as_bytes());
    key
}

/// The text to store for the record of a datastore.
///
/// # Errors
/// [`WitnessStoreError::Entry`], never in practice.
pub(crate) fn stored_text(
    datastore: DatastoreUuid,
    entry: WitnessEntry,
) -> Result<Vec<u8>, WitnessStoreError> {
    let text = entry.to_text();
    text.map_err(|source| WitnessStoreError::Entry { datastore, source })
}

/// The record in a stored text, which must belong to this pair.
///
/// # Errors
/// [`WitnessStoreError::Entry`] and [`WitnessStoreError::OtherPair`].
pub(crate) fn stored_record(
    datastore: DatastoreUuid,
    pair: NodePair,
    text: &[u8],
) -> Result<WitnessRecord, WitnessStoreError> {
    let entry = decoded(datastore, text)?;
    if entry.pair != pair {
        return Err(WitnessStoreError::OtherPair {
            datastore,
            stored: entry.pair,
        });
    }
    Ok(entry.record)
}

fn decoded(datastore: DatastoreUuid, text: &[u8]) -> Result<WitnessEntry, WitnessStoreError> {
    WitnessEntry::from_text(text).map_err(|source| WitnessStoreError::Entry { datastore, source })
}

fn failed(place: &str, source: KvError) -> WitnessStoreError {
    let place = place.to_owned();
    match source {
        KvError::Missing { .. } => WitnessStoreError::Missing { place },
        KvError::Exists { .. } => WitnessStoreError::Exists { place },
        KvError::Damaged { what, .. } => WitnessStoreError::Damaged { place, what },
        source => WitnessStoreError::Disk { place, source },
    }
}
