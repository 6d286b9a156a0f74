//! The schedules in which a mutant can show at all. The others need not be run to find it.

use lockstep_types::mutants::Mutant;

use crate::scenario::Plan;

/// Returns whether the search for a mutant should run a schedule. Where the answer is no, the mutant's code is not
/// reached, or only by an event that other schedules have more often.
pub fn suits(mutant: Mutant, plan: &Plan) -> bool {
    match mutant {
        Mutant::KeepNameOfSync => plan.puts_copies_back(),
        Mutant::GateLetsWriteThrough
        | Mutant::GateOpensEarly
        | Mutant::FoldUnlogged
        | Mutant::TornUnnoted
        | Mutant::DeleteHeld => plan.takes_snapshots(),
        Mutant::ReapFromTrash => plan.keeps_everything(),
        Mutant::TrashUnsent => !plan.settings.trash.is_off(),
        Mutant::DropUnreaped => plan.empties_trash(),
        Mutant::ForgetWaiting => plan.has_standby_programs,
        Mutant::RunOvertaken => plan.kills_programs,
        Mutant::ServeWithoutLease
        | Mutant::GoAloneUnasked
        | Mutant::TakeOverEarly
        | Mutant::SilenceFromLook
        | Mutant::StandUnrecorded
        | Mutant::TrustOldWord
        | Mutant::CachesOutliveLease
        | Mutant::RejoinWithoutPaw => plan.settings.failover_after.is_some(),
        Mutant::ServeUndecided
        | Mutant::HandOverBusy
        | Mutant::HandOverUnsynced
        | Mutant::LeadAfterPowerLoss
        | Mutant::RecordUnwritten
        | Mutant::PromoteInSameGeneration
        | Mutant::KeepLoserComplete
        | Mutant::DeltaForgetsUnapplied
        | Mutant::KeepInDoubt
        | Mutant::KeepSession => plan.changes_roles,
        Mutant::PromoteUnasked
        | Mutant::ForceIntoNextGeneration
        | Mutant::ForceUntold
        | Mutant::DemoteInSameGeneration
        | Mutant::KeepDemotedComplete
        | Mutant::MarksUnasked
        | Mutant::KeepVerifierOfDemoted
        | Mutant::PromoteWithOldVerifier
        | Mutant::FollowAfterAlone => plan.accepts_losses(),
        _ => true,
    }
}

/// Returns the seeds from `first` on whose schedules suit a mutant.
pub fn seeds(mutant: Mutant, first: u64) -> impl Iterator<Item = u64> {
    (first..).filter(move |seed| suits(mutant, &Plan::of(*seed)))
}
