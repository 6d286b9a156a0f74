//! The checks of a schedule. This file only declares the parts.

pub mod bounds;
pub mod final_checks;
pub mod live_checks;
