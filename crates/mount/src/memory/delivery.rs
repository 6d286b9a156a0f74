//! Whether a request comes for the first time, or an earlier process has read the request.

use fuser::Request;

/// The bit of a unique number by which the kernel marks a request that it sends again (`FUSE_UNIQUE_RESEND`).
const RESENT: u64 = 1 << 63;

/// The unique number of a request, and whether the kernel sends the request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestDelivery {
    /// The number, the same whenever the kernel sends the request.
    pub unique: u64,
    /// An earlier process may have executed the request.
    pub is_resent: bool,
    /// An earlier process has read the request.
    pub was_read_before: bool,
}

impl RequestDelivery {
    /// The delivery of a request, as the kernel marks it.
    pub fn of(request: &Request) -> Self {
        let unique = request.unique().0;
        let was_read_before = unique & RESENT != 0;
        Self {
            unique: unique & !RESENT,
            is_resent: was_read_before,
            was_read_before,
        }
    }
}
