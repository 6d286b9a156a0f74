//! `sums/era`: the secret of the sums, and the era in which they count.
//!
//! Two slots of 4096 bytes. A change overwrites the older one, and syncs the file: so a change needs no room, and a torn slot
//! leaves the one before. A file without a whole slot says nothing: the sums begin anew.
//!
//! Invariant: a number of an era is never used twice, not even if the file is lost: the number is above that of each earlier
//! opening of the store.

use std::io::ErrorKind;

use lockstep_sums::SumSecret;
use lockstep_types::backing::Backing;
use lockstep_types::{BootId, Hash128};

use super::slot::SumEra;
use crate::error::StoreError;
use crate::paths::{ERA_FILE, SUMS_DIR};

const SLOT_BYTES: usize = 4096;
const MAGIC: [u8; 8] = *b"lockstE1";
const RECORD_BYTES: usize = 96;
const BODY_BYTES: usize = RECORD_BYTES - 16;

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EraRecord {
    /// Counts the changes of the file.
    pub change: u64,
    pub era: SumEra,
    pub secret: [u8; 32],
    /// The run of the machine while the store is open; `None` after a clean shutdown with all sums on stable storage.
    pub boot: Option<BootId>,
}

impl EraRecord {
    pub fn secret(&self) -> SumSecret {
        SumSecret::new(self.secret)
    }

    /// Reads the file; `None` if there is none, or none that says anything.
    pub fn read(backing: &dyn Backing) -> Result<Option<Self>, StoreError> {
        let file = match backing.open(ERA_FILE) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(StoreError::disk("open", ERA_FILE))?,
        };
        let mut newest = None;
        for slot in 0..2_u64 {
            let mut bytes = [0; RECORD_BYTES];
            let read = file.read_at(slot * SLOT_BYTES as u64, &mut bytes);
            read.map_err(StoreError::disk("read", ERA_FILE))?;
            let found = Self::decode(&bytes);
            if found.as_ref().map(|found| found.change) > newest.as_ref().map(|it: &Self| it.change)
            {
                newest = found;
            }
        }
        Ok(newest)
    }

    /// Puts the record on stable storage.
    pub fn store(&self, backing: &dyn Backing) -> Result<(), StoreError> {
        let is_new = !backing
            .exists(ERA_FILE)
            .map_err(StoreError::disk("look for", ERA_FILE))?;
        let file = backing
            .open_or_create(ERA_FILE)
            .map_err(StoreError::disk("open", ERA_FILE))?;
        if is_new {
            // Room for both slots.
            let made = file.write_at(0, &[0; 2 * SLOT_BYTES]);
            made.map_err(StoreError::disk("write", ERA_FILE))?;
        }
        let written = file.write_at(self.change % 2 * SLOT_BYTES as u64, &self.encode());
        written
            .and_then(|()| file.sync())
            .map_err(StoreError::disk("write", ERA_FILE))?;
        if is_new {
            for directory in [SUMS_DIR, "."] {
                let named = backing.sync_dir(directory);
                named.map_err(StoreError::disk("sync the names in", directory))?;
            }
        }
        Ok(())
    }

    /// Removes the file.
    pub fn remove(backing: &dyn Backing) -> Result<(), StoreError> {
        let removed = backing.remove(ERA_FILE);
        removed.map_err(StoreError::disk("remove", ERA_FILE))?;
        let named = backing.sync_dir(SUMS_DIR);
        named.map_err(StoreError::disk("sync the names in", SUMS_DIR))
    }

    fn encode(&self) -> [u8; RECORD_BYTES] {
        let boot = self.boot.map_or([0; 16], |boot| *boot.as_bytes());
        let parts: [&[u8]; 6] = [
            &MAGIC,
            &self.change.to_le_bytes(),
            &self.era.0.to_le_bytes(),
            &self.secret,
            &u64::from(self.boot.is_some()).to_le_bytes(),
            &boot,
        ];
        let body = parts.concat();
        let mut bytes = [0; RECORD_BYTES];
        let (head, tail) = bytes.split_at_mut(BODY_BYTES);
        head.copy_from_slice(&body);
        tail.copy_from_slice(&Hash128::of(&body).0);
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let (body, hash) = bytes.split_at(BODY_BYTES);
        if hash != Hash128::of(body).0 || !body.starts_with(&MAGIC) {
            return None;
        }
        let word = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?))
        };
        let boot = BootId::from_bytes(body.get(64..80)?.try_into().ok()?);
        Some(Self {
            change: word(8)?,
            era: SumEra(word(16)?),
            secret: body.get(24..56)?.try_into().ok()?,
            boot: (word(56)? != 0).then_some(boot),
        })
    }
}
