//! The progress of a resync that no primary would tell: the numbers do not fit each other.

use lockstep_testbed::chance::Chance;
use lockstep_types::{ResyncPhase, ResyncStatus};

use crate::bytes::number;

/// Random progress.
pub fn random(chance: &mut Chance) -> ResyncStatus {
    let mut known = || {
        let number = number(chance);
        Some(number).filter(|number| number % 4 > 0)
    };
    ResyncStatus {
        phase: ResyncPhase::Content,
        whole: None,
        files_total: known(),
        files_done: known().unwrap_or_default(),
        bytes_total: known(),
        bytes_done: known().unwrap_or_default(),
        bytes_sent: known().unwrap_or_default(),
        bytes_per_second: known(),
        left_ms: known(),
        waits_for: None,
    }
}
