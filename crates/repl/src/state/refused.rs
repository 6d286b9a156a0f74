//! The pairs of state and trigger that lead nowhere, with the reasons.
//!
//! Invariant, checked by the compiler at the end of this file: every pair is once in [`TABLE`] or once in [`REFUSED`].

use strum::VariantArray as _;

use super::table::TABLE;
use super::{State, Trigger};

/// The reason why a trigger leads nowhere in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// A race brought the trigger too late: it concerns a connection or a mark that another one has replaced. The core
    /// drops the trigger.
    Outdated,
    /// The trigger never comes to this role, or to a node without a peer. A fault.
    OtherRole,
    /// The trigger never comes in this state. A fault.
    Impossible,
}

impl RefusalReason {
    /// Whether node or peer must have a fault. The driver closes the connection then: without a connection no
    /// operation is taken as done on both nodes, and the next connection compares the states of the nodes anew.
    pub const fn is_fault(self) -> bool {
        match self {
            Self::OtherRole | Self::Impossible => true,
            Self::Outdated => false,
        }
    }

    pub(super) const fn describe(self) -> &'static str {
        match self {
            Self::Outdated => "it is outdated",
            Self::OtherRole => "it cannot come to this role",
            Self::Impossible => "it cannot come there",
        }
    }
}

/// States, triggers, and the reason why each of the states refuses each of the triggers; with an explanation for the
/// reader.
pub type RefusedRow = (
    &'static [State],
    &'static [Trigger],
    RefusalReason,
    &'static str,
);

/// Every pair of state and trigger that is not in [`TABLE`].
#[rustfmt::skip]
pub const REFUSED: &[RefusedRow] = {
    use RefusalReason::{Impossible, Outdated, OtherRole};
    use State::{
        CatchingUp, EnteringSync, Frozen, LeavingSync, OutOfSync, Paused, Poisoned, ResyncContent,
        ResyncNamespace, ResyncTail, SecondaryCatchingUp, SecondaryDisconnected,
        SecondaryOutOfSync, SecondaryPoisoned, SecondaryResyncing, SecondarySynced, Synced,
        Unmirrored,
    };
    use Trigger::{
        ContentDone, ImageDone, ImageSent, LinkLost, LinkUpInSync, LinkUpOutOfSync, MarkedInSync,
        MarkedOutOfSync, OutOfSyncGranted, PauseOverContinue, PauseOverFreeze, PeerFailed, Recovered,
        StorePoisoned,
    };
    &[
        (
            &[OutOfSync],
            &[ImageSent, ImageDone, ContentDone],
            Outdated,
            "the peer failed when a transfer was just over; the connection is about to be closed",
        ),
        (
            &[ResyncNamespace, ResyncTail, ResyncContent, EnteringSync, Synced, CatchingUp],
            &[LinkUpInSync, LinkUpOutOfSync],
            Impossible,
            "one thread owns the connection, and reports its end before it makes the next connection",
        ),
        (
            &[Paused, Frozen],
            &[LinkLost],
            Impossible,
            "there is no connection; a new connection leads to another state at once",
        ),
        (
            &[
                OutOfSync, ResyncNamespace, ResyncTail, ResyncContent, EnteringSync, Synced, Frozen,
                CatchingUp, LeavingSync,
            ],
            &[PauseOverContinue, PauseOverFreeze],
            Impossible,
            "the core checks the pause in `Paused` only",
        ),
        (
            &[
                OutOfSync, ResyncNamespace, ResyncTail, ResyncContent, EnteringSync, Synced, Paused, Frozen,
                LeavingSync,
            ],
            &[Recovered],
            Impossible,
            "the core itself ends a recovery, and drops the recovery when it leaves `CatchingUp`",
        ),
        (
            &[
                ResyncTail, ResyncContent, EnteringSync, Synced, Paused, Frozen, CatchingUp,
                LeavingSync,
            ],
            &[ImageSent],
            Impossible,
            "a transfer counts only while its connection stands (P9), and each connection has it once",
        ),
        (
            &[
                ResyncNamespace, ResyncContent, EnteringSync, Synced, Paused, Frozen, CatchingUp,
                LeavingSync,
            ],
            &[ImageDone],
            Impossible,
            "a transfer counts only while its connection stands (P9), and each connection has it once",
        ),
        (
            &[ResyncNamespace, ResyncTail, EnteringSync, Synced, Paused, Frozen, CatchingUp, LeavingSync],
            &[ContentDone],
            Impossible,
            "a transfer counts only while its connection stands (P9), and each connection has it once",
        ),
        (
            &[
                OutOfSync, ResyncNamespace, ResyncTail, ResyncContent, Synced, Paused, Frozen,
                CatchingUp,
            ],
            &[MarkedInSync],
            Impossible,
            "the mark is made in `EnteringSync` only; the next state may be `LeavingSync`, whose own mark \
             comes after this mark",
        ),
        (
            &[
                OutOfSync, ResyncNamespace, ResyncTail, ResyncContent, EnteringSync, Synced, Paused, Frozen,
                CatchingUp,
            ],
            &[MarkedOutOfSync],
            Impossible,
            "only `LeavingSync` asks for the mark, once, and ends with the mark or with a failed disk",
        ),

        (
            &[SecondaryOutOfSync, SecondaryResyncing, SecondarySynced, SecondaryDisconnected],
            &[Recovered],
            Outdated,
            "the connection was lost before `RecoveryDone` was done; or the primary sent `RecoveryDone` over \
             the next connection",
        ),
        (
            &[SecondaryOutOfSync],
            &[MarkedOutOfSync],
            Outdated,
            "the connection of a resync was lost while the mark was being made",
        ),
        (
            &[SecondaryResyncing, SecondarySynced, SecondaryCatchingUp],
            &[LinkUpInSync, LinkUpOutOfSync],
            Impossible,
            "the next connection is served after the end of the previous connection (P9)",
        ),
        (
            &[SecondaryOutOfSync, SecondaryDisconnected],
            &[LinkLost],
            Impossible,
            "there is no connection; a new connection leads to another state at once",
        ),
        (
            &[SecondaryOutOfSync],
            &[LinkUpInSync],
            Impossible,
            "its own mark says out of sync; or, if that mark could not be written, the primary's mark says so or names another sync (P17)",
        ),
        (
            &[SecondarySynced, SecondaryDisconnected, SecondaryCatchingUp],
            &[MarkedInSync],
            Impossible,
            "`InSync` comes only at the end of a resync",
        ),
        (
            &[
                SecondaryOutOfSync, SecondaryResyncing, SecondarySynced, SecondaryDisconnected,
                SecondaryCatchingUp,
            ],
            &[PauseOverContinue, PauseOverFreeze, PeerFailed, ImageSent, ImageDone, ContentDone],
            OtherRole,
            "only a primary does this",
        ),

        (
            &[Unmirrored],
            &[
                LinkUpInSync, LinkUpOutOfSync, LinkLost, PauseOverContinue, PauseOverFreeze,
                PeerFailed, Recovered, ImageSent, ImageDone, ContentDone, MarkedInSync, MarkedOutOfSync,
            ],
            OtherRole,
            "there is no peer",
        ),

        (
            &[Poisoned],
            &[
                LinkUpInSync, LinkUpOutOfSync, LinkLost, PeerFailed, ImageSent, ImageDone, ContentDone,
                MarkedInSync, MarkedOutOfSync, StorePoisoned,
            ],
            Outdated,
            "the trigger was under way when the disk failed; only an operator leads out of this state (P16)",
        ),
        (
            &[Poisoned],
            &[PauseOverContinue, PauseOverFreeze, Recovered],
            Impossible,
            "the core checks pause and recovery in other states only",
        ),
        (
            &[SecondaryPoisoned],
            &[
                LinkUpInSync, LinkUpOutOfSync, LinkLost, Recovered, MarkedInSync, MarkedOutOfSync,
                StorePoisoned,
            ],
            Outdated,
            "the trigger was under way when the disk failed; only an operator leads out of this state (P16)",
        ),
        (
            &[SecondaryPoisoned],
            &[PauseOverContinue, PauseOverFreeze, PeerFailed, ImageSent, ImageDone, ContentDone],
            OtherRole,
            "only a primary does this",
        ),

        (
            &[
                OutOfSync, ResyncNamespace, ResyncTail, ResyncContent, EnteringSync, Synced,
                CatchingUp, LeavingSync, Poisoned,
            ],
            &[OutOfSyncGranted],
            Outdated,
            "the nodes have connected again while the witness answered, or the disk has failed",
        ),
        (
            &[
                Unmirrored, SecondaryOutOfSync, SecondaryResyncing, SecondarySynced,
                SecondaryDisconnected, SecondaryCatchingUp, SecondaryPoisoned,
            ],
            &[OutOfSyncGranted],
            OtherRole,
            "only a primary with a peer asks to serve alone",
        ),
    ]
};

const STATES: usize = State::VARIANTS.len();
const TRIGGERS: usize = Trigger::VARIANTS.len();

/// For each pair the number of its rows in the two tables.
#[expect(clippy::indexing_slicing, reason = "runs only in the compiler")]
const fn rows() -> [[usize; TRIGGERS]; STATES] {
    let mut rows = [[0; TRIGGERS]; STATES];
    let mut row = 0;
    while row < TABLE.len() {
        let (state, trigger, ..) = TABLE[row];
        rows[state as usize][trigger as usize] += 1;
        row += 1;
    }
    let mut row = 0;
    while row < REFUSED.len() {
        let (states, triggers, ..) = REFUSED[row];
        let mut state = 0;
        while state < states.len() {
            let mut trigger = 0;
            while trigger < triggers.len() {
                rows[states[state] as usize][triggers[trigger] as usize] += 1;
                trigger += 1;
            }
            state += 1;
        }
        row += 1;
    }
    rows
}

// The test below names the wrong pair: `cargo test -p lockstep-repl --lib` compiles without this check.
#[cfg(not(test))]
#[expect(clippy::indexing_slicing, reason = "runs only in the compiler")]
const _: () = {
    let rows = rows();
    let mut pair = 0;
    while pair < STATES * TRIGGERS {
        match rows[pair / TRIGGERS][pair % TRIGGERS] {
            0 => panic!("a pair of state and trigger is neither handled nor refused"),
            1 => pair += 1,
            _ => panic!("a pair of state and trigger is handled or refused twice"),
        }
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_handled_or_refused_once() {
        let rows = rows();
        for &state in State::VARIANTS {
            for &trigger in Trigger::VARIANTS {
                let found = rows[state as usize][trigger as usize];
                assert_eq!(found, 1, "rows with {trigger:?} in {state:?}");
            }
        }
    }

    #[test]
    fn a_refusal_has_the_reason_of_its_row() {
        for (states, triggers, why, _) in REFUSED {
            for &state in *states {
                for &trigger in *triggers {
                    let refused = state.next(trigger).unwrap_err();
                    assert_eq!((refused.state, refused.trigger), (state, trigger));
                    assert_eq!(refused.why, *why, "{trigger:?} in {state:?}");
                }
            }
        }
    }

    #[test]
    fn a_refusal_names_trigger_state_and_reason() {
        let refused = State::Synced.next(Trigger::Recovered).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "Recovered is refused in state Synced: it cannot come there"
        );
    }
}
