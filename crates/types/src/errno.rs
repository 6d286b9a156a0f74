//! The errors that a client of the file system may see, by their POSIX names.
//!
//! An errno is an answer to a client, not a failure of Lockstep: a refused operation changes nothing.

use serde::{Deserialize, Serialize};

macro_rules! errnos {
    ($($name:ident = $code:literal : $text:literal,)*) => {
        /// A POSIX error number (Linux values).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
        #[allow(missing_docs)] // its message documents each error
        pub enum Errno {
            $(#[doc = $text] #[error($text)] $name,)*
        }

        impl Errno {
            /// The error's number on Linux.
            pub const fn code(self) -> i32 {
                match self { $(Self::$name => $code,)* }
            }

            /// The error with this number on Linux; [`Errno::Io`] for an unknown number.
            pub const fn from_code(code: i32) -> Self {
                match code { $($code => Self::$name,)* _ => Self::Io }
            }
        }
    };
}

errnos! {
    NotPermitted = 1: "operation not permitted",
    NoEntry = 2: "no such file or directory",
    Io = 5: "input/output error",
    NoDevice = 6: "no such device or address",
    BadHandle = 9: "bad file descriptor",
    Again = 11: "resource temporarily unavailable",
    NoMemory = 12: "out of memory",
    Access = 13: "permission denied",
    Busy = 16: "device or resource busy",
    Exists = 17: "file exists",
    CrossDevice = 18: "invalid cross-device link",
    NotDirectory = 20: "not a directory",
    IsDirectory = 21: "is a directory",
    Invalid = 22: "invalid argument",
    TooBig = 27: "file too large",
    NoSpace = 28: "no space left on device",
    ReadOnly = 30: "read-only file system",
    TooManyLinks = 31: "too many links",
    Range = 34: "result too large for the buffer",
    NameTooLong = 36: "file name too long",
    NotImplemented = 38: "function not implemented",
    NotEmpty = 39: "directory not empty",
    NoData = 61: "no such attribute",
    NotSupported = 95: "operation not supported",
    Stale = 116: "stale file handle",
    QuotaExceeded = 122: "disk quota exceeded",
    Interrupted = 4: "interrupted system call",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for errno in [Errno::NoEntry, Errno::NoSpace, Errno::Stale] {
            assert_eq!(Errno::from_code(errno.code()), errno);
        }
        assert_eq!(Errno::from_code(9999), Errno::Io);
    }
}
