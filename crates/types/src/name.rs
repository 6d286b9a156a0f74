//! The name of a directory entry.
//!
//! Invariants: 1 to [`limits::NAME_BYTES_MAX`] bytes, no slash, no NUL, not `.` or `..`. Any other
//! byte is allowed: names are bytes, not text.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::errno::Errno;
use crate::limits;

/// A valid directory entry name; cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "serde_bytes::ByteBuf", into = "serde_bytes::ByteBuf")]
pub struct FileName(Arc<[u8]>);

impl FileName {
    /// The name with these bytes.
    ///
    /// # Errors
    /// [`Errno::NameTooLong`] above the limit; [`Errno::Invalid`] if the bytes cannot name an entry.
    pub fn new(bytes: &[u8]) -> Result<Self, Errno> {
        if bytes.len() > limits::NAME_BYTES_MAX {
            return Err(Errno::NameTooLong);
        }
        let reserved = bytes.is_empty() || bytes == b"." || bytes == b"..";
        if reserved || bytes.iter().any(|&byte| byte == 0 || byte == b'/') {
            return Err(Errno::Invalid);
        }
        Ok(Self(bytes.into()))
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<serde_bytes::ByteBuf> for FileName {
    type Error = Errno;

    fn try_from(bytes: serde_bytes::ByteBuf) -> Result<Self, Errno> {
        Self::new(&bytes)
    }
}

impl From<FileName> for serde_bytes::ByteBuf {
    fn from(name: FileName) -> Self {
        Self::from(name.as_bytes().to_vec())
    }
}

impl fmt::Debug for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_bytes_that_name_no_entry() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(FileName::new(bad), Err(Errno::Invalid));
        }
        assert_eq!(FileName::new(&[b'x'; 256]), Err(Errno::NameTooLong));
        assert!(FileName::new(&[0xff; 255]).is_ok());
    }
}
