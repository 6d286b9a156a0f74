//! The checks of a schedule. This file only declares the parts.

pub mod bounds;
pub mod final_checks;
pub mod live_checks;
pub mod resync_end;
pub mod service_checks;
pub mod stale_caches;
