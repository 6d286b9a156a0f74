//! Which run of the machine this is: what tells a loss of power from a stop of the process.

use lockstep_types::{BootId, DatastoreUuid};

/// Where the kernel says it.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A value that the kernel makes anew at each start of the machine. Where it cannot be read, one
/// that never was before: then whatever is opened counts as left by a loss of power, and trusts
/// nothing but what is on the disk.
pub fn boot_id() -> BootId {
    let text = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    let parsed: Result<DatastoreUuid, _> = text.trim().parse();
    let uuid = parsed.unwrap_or_else(|_| DatastoreUuid::random());
    BootId::from_bytes(*uuid.as_bytes())
}
