//! The reads that planning needs.

use lockstep_types::Ino;

use crate::error::OpError;
use crate::namespace::keys::KeyRange;
use crate::namespace::record::Inode;

/// A store, as planning reads it.
pub trait View {
    /// Value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, OpError>;

    /// Keys of a range, in order.
    fn keys(&self, range: &KeyRange) -> Result<Vec<Vec<u8>>, OpError>;

    /// An inode as it is now: sizes and times of unflushed writes included.
    fn inode(&self, ino: Ino) -> Result<Option<Inode>, OpError>;
}
