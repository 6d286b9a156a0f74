//! The boot id: names this run of the machine, and so tells a power loss from a stop of the process.

use lockstep_types::{BootId, DatastoreUuid};

/// The file in which the kernel gives the boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The boot id of the kernel, which is new at each start of the machine. If it cannot be read, a random value: then
/// every opened store is treated as after a power loss, and only the disk is trusted.
pub fn boot_id() -> BootId {
    let text = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
    let parsed: Result<DatastoreUuid, _> = text.trim().parse();
    let uuid = parsed.unwrap_or_else(|_| DatastoreUuid::random());
    BootId::from_bytes(*uuid.as_bytes())
}
