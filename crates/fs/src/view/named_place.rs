//! The name of an inode by the place that its record has: one look-up, and no search.

use lockstep_types::Ino;

use super::StoreView;
use crate::error::{OpError, StoreError};
use crate::namespace::keys;
use crate::namespace::record::{self, NamedEntry};

/// A directory and a name in the directory.
pub type ParentAndName = (Ino, Vec<u8>);

/// The name that an inode has got last; `None` if that is not known, or is another inode's by now, and without such an inode.
///
/// # Errors
/// If the store cannot be read.
pub fn name_at_place(view: &dyn StoreView, ino: Ino) -> Result<Option<ParentAndName>, OpError> {
    let place = view.inode(ino)?.and_then(|inode| inode.named_at);
    let Some(place) = place else {
        return Ok(None);
    };
    let key = keys::cookie(place.directory, place.cookie);
    let Some(bytes) = view.get(&key)? else {
        return Ok(None);
    };
    let entry: NamedEntry = record::decode(&bytes).ok_or_else(|| StoreError::unreadable(&key))?;
    let is_here = entry.ino == ino;
    Ok(is_here.then(|| (place.directory, entry.name.as_bytes().to_vec())))
}
