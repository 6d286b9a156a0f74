//! The two slots of the role file: the same state twice at rest, each with the number of the change and a checksum.

use std::io;

use lockstep_types::Hash128;
use lockstep_types::backing::Backing;
use lockstep_types::limits::BLOCK_BYTES;
use serde::{Deserialize, Serialize};

use super::state::RoleState;

/// The file in the directory of the store.
pub(crate) const FILE: &str = "role.json";

/// The content of a slot: the number of the change, the state, and the checksum of both.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoleSlot {
    change: u64,
    state: RoleState,
    checksum: String,
}

/// The checksum in hex, over the value as JSON in one line.
fn checksum(of: &impl Serialize) -> io::Result<String> {
    let sum = Hash128::of(&serde_json::to_vec(of)?);
    Ok(format!("{:032x}", u128::from_be_bytes(sum.0)))
}

impl RoleSlot {
    /// The block of a change: text, padded with blanks.
    pub fn block(change: u64, state: RoleState) -> io::Result<Vec<u8>> {
        let checksum = checksum(&(change, state))?;
        let slot = Self {
            change,
            state,
            checksum,
        };
        let mut text = serde_json::to_vec_pretty(&slot)?;
        if text.len() >= BLOCK_BYTES {
            return Err(io::Error::other(
                "the role of the node takes more than a block",
            ));
        }
        text.resize(BLOCK_BYTES - 1, b' ');
        text.push(b'\n');
        Ok(text)
    }

    /// The slot in a block, if the block is whole.
    fn read(block: &[u8]) -> Option<Self> {
        let slot: Self = serde_json::from_slice(block).ok()?;
        let expected = checksum(&(slot.change, slot.state)).ok()?;
        (block.len() == BLOCK_BYTES && slot.checksum == expected).then_some(slot)
    }
}

/// Which of two whole slots counts. Two slots with the same number have the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotChoice {
    /// The slot with the highest number.
    Last,
    /// The slot with the lowest number: on a disk that has failed. The process whose change failed went on with the state before
    /// that change, and so did the other node and the operator. So the state before counts, if a slot still has it.
    BeforeFailure,
}

impl SlotChoice {
    fn prefers(self, slot: &RoleSlot, other: &RoleSlot) -> bool {
        match self {
            Self::Last => slot.change > other.change,
            Self::BeforeFailure => slot.change < other.change,
        }
    }
}

/// The state in the file, and the number of its change; `None` without a file.
pub(super) fn read(
    backing: &dyn Backing,
    choice: SlotChoice,
) -> io::Result<Option<(RoleState, u64)>> {
    let file = match backing.open(FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = vec![0; 2 * BLOCK_BYTES];
    let length = file.read_at(0, &mut bytes)?;
    bytes.truncate(length);
    parse(&bytes, choice).map(Some)
}

/// The state in the slot that counts. A damaged slot was being written when the power was lost, or the disk has damaged it: then
/// the other slot counts.
pub(super) fn parse(bytes: &[u8], choice: SlotChoice) -> io::Result<(RoleState, u64)> {
    let slots = bytes.chunks(BLOCK_BYTES).filter_map(RoleSlot::read);
    let counts = slots.reduce(|first, second| {
        if choice.prefers(&second, &first) {
            second
        } else {
            first
        }
    });
    let slot = counts.ok_or_else(damaged)?;
    Ok((slot.state, slot.change))
}

fn damaged() -> io::Error {
    let cure = "Check the disk, then see \"A store is damaged\" in docs/operations/disks.md";
    let text = format!("{FILE} is damaged: neither slot is whole. {cure}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}
