//! The records of a schedule: its history, its coverage, and the numbers of its changes of roles. This file only declares the
//! parts.

pub mod coverage;
pub mod history_recorder;
pub mod tally;
