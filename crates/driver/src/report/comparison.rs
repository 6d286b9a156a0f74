//! The report of a comparison of both nodes, as `lockstep verify` prints it.

use lockstep_types::settings::Role;
use lockstep_verify::kept_blocks::BAD_BLOCKS_DIR;
use lockstep_verify::{BlockVerdict, DifferenceKind, InodeDifference, RepairOutcome, Report, Side};

use super::{BlocksDifference, Difference, VerifyMode, VerifyReport};

/// The report of a comparison that the primary has made.
pub(crate) fn verify_report(report: Report, mode: VerifyMode) -> VerifyReport {
    VerifyReport {
        identical: report.is_identical(),
        inodes_compared: report.inodes,
        bytes_compared: report.bytes,
        differences_total: report.total,
        healed_total: report.healed,
        unproved_blocks: report.void_blocks,
        kept_in: (mode == VerifyMode::Repair && report.total > 0)
            .then(|| BAD_BLOCKS_DIR.to_owned()),
        differences: report.differences.into_iter().map(difference).collect(),
    }
}

fn difference(found: InodeDifference) -> Difference {
    Difference {
        inode: found.ino,
        path: found.path,
        what: found.what.to_string(),
        blocks: blocks(&found.what),
    }
}

fn blocks(what: &DifferenceKind) -> Option<BlocksDifference> {
    let DifferenceKind::Blocks {
        offset,
        length,
        verdict,
        repair,
    } = what
    else {
        return None;
    };
    Some(BlocksDifference {
        offset: *offset,
        length: *length,
        verdict: word(*verdict).to_owned(),
        wrong_on: wrong_side(*verdict).map(role),
        healed: matches!(repair, RepairOutcome::Done { .. }),
    })
}

/// The primary compares.
const fn role(side: Side) -> Role {
    match side {
        Side::Here => Role::Primary,
        Side::There => Role::Secondary,
    }
}

const fn wrong_side(verdict: BlockVerdict) -> Option<Side> {
    match verdict {
        BlockVerdict::WrongBytes(side) | BlockVerdict::WrongSum(side) => Some(side),
        _ => None,
    }
}

/// A verdict in JSON (docs/json.md).
const fn word(verdict: BlockVerdict) -> &'static str {
    match verdict {
        BlockVerdict::Sound => "sound",
        BlockVerdict::Unproved | BlockVerdict::VoidSum(_) => "unproved",
        BlockVerdict::WrongBytes(_) => "wrong_bytes",
        BlockVerdict::WrongSum(_) => "wrong_sum",
        BlockVerdict::CopiesDiffer => "copies_differ",
        BlockVerdict::NoneKnownRight => "none_known_right",
        BlockVerdict::UnknownByVoid => "unknown",
    }
}
