//! The pairs of state and trigger that lead nowhere, and why.
//!
//! Invariant, checked at the end when this is compiled: every pair is in [`TABLE`] or here, once.

use strum::VariantArray as _;

use super::{State, TABLE, Trigger};

/// Why a trigger leads nowhere in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It can come, by a race: it is about a connection or a mark that has been overtaken. It is
    /// dropped.
    LateNews,
    /// It never comes to this role, or to a node without a peer. A fault.
    OtherRole,
    /// It never comes in this state. A fault.
    Impossible,
    /// It is about the change of roles, which is not built yet: nobody sends it.
    NoFailoverYet,
}

impl Refusal {
    /// Whether node or peer must have a fault. The connection is closed then: without one nothing is
    /// taken as done on both nodes, and the next one finds out anew how the two stand.
    pub const fn is_fault(self) -> bool {
        match self {
            Self::OtherRole | Self::Impossible => true,
            Self::LateNews | Self::NoFailoverYet => false,
        }
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::LateNews => "it is late news",
            Self::OtherRole => "it cannot come to this role",
            Self::Impossible => "it cannot come there",
            Self::NoFailoverYet => "there is no failover yet",
        }
    }
}

/// A trigger that leads nowhere in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{trigger:?} is refused in state {state:?}: {}", .why.describe())]
pub struct Refused {
    /// In this state.
    pub state: State,
    /// This happened.
    pub trigger: Trigger,
    /// Why it leads nowhere.
    pub why: Refusal,
}

impl Refused {
    /// Of a pair that is not in [`TABLE`].
    pub(super) fn pair(state: State, trigger: Trigger) -> Self {
        let row = REFUSED
            .iter()
            .find(|(states, triggers, ..)| states.contains(&state) && triggers.contains(&trigger));
        Self {
            state,
            trigger,
            why: row.map_or(Refusal::Impossible, |(_, _, why, _)| *why),
        }
    }
}

/// In each of these states, each of these triggers is refused, for this reason, because of this.
pub type RefusedRow = (&'static [State], &'static [Trigger], Refusal, &'static str);

/// Every pair that is not in [`TABLE`].
#[rustfmt::skip]
pub const REFUSED: &[RefusedRow] = {
    use Refusal::{Impossible, LateNews, NoFailoverYet, OtherRole};
    use State::{
        CatchingUp, EnteringSync, Frozen, LeavingSync, OutOfSync, Paused, Poisoned, ResyncContent,
        ResyncNamespace, ResyncTail, SecondaryCatchingUp, SecondaryDisconnected,
        SecondaryOutOfSync, SecondaryPoisoned, SecondaryResyncing, SecondarySynced, Synced,
        Unmirrored,
    };
    use Trigger::{
        ContentDone, DemoteAsked, Deposed, FailoverAsked, ImageDone, ImageSent, LeaseOver, LeaseRenewed,
        LinkLost, LinkUpInSync, LinkUpOutOfSync, MarkedInSync, MarkedOutOfSync, OutOfSyncGranted,
        PauseOverContinue, PauseOverFreeze, PeerFailed, PromoteAsked, PromoteForced, RaceLost,
        Recovered, StorePoisoned, TakeoverDue, TakeoverGranted,
    };
    &[
        (
            &[OutOfSync],
            &[ImageSent, ImageDone, ContentDone],
            LateNews,
            "the peer failed when a transfer was just over; its connection is about to be closed",
        ),
        (
            &[ResyncNamespace, ResyncTail, ResyncContent, EnteringSync, Synced, CatchingUp],
            &[LinkUpInSync, LinkUpOutOfSync],
            Impossible,
            "one thread has the connection, and tells of its end before it makes the next",
        ),
        (
            &[Paused, Frozen],
            &[LinkLost],
            Impossible,
            "there is no connection; one that comes up leads elsewhere at once",
        ),
        (
            &[
                OutOfSync, ResyncNamespace, ResyncTail, ResyncContent, EnteringSync, Synced, Frozen,
                CatchingUp, LeavingSync,
            ],
            &[PauseOverContinue, PauseOverFreeze],
            Impossible,
            "the core looks at the pause in `Paused` only",
        ),
        (
            &[
                OutOfSync, ResyncNamespace, ResyncTail, ResyncContent, EnteringSync, Synced, Paused, Frozen,
                LeavingSync,
            ],
            &[Recovered],
            Impossible,
            "the core ends a recovery itself, and drops it when it leaves `CatchingUp`",
        ),
        (
            &[
                ResyncTail, ResyncContent, EnteringSync, Synced, Paused, Frozen, CatchingUp,
                LeavingSync,
            ],
            &[ImageSent],
            Impossible,
            "a transfer counts only while its connection stands (P9), and is made once over it",
        ),
        (
            &[
                ResyncNamespace, ResyncContent, EnteringSync, Synced, Paused, Frozen, CatchingUp,
                LeavingSync,
            ],
            &[ImageDone],
            Impossible,
            "as above",
        ),
        (
            &[ResyncNamespace, ResyncTail, EnteringSync, Synced, Paused, Frozen, CatchingUp, LeavingSync],
            &[ContentDone],
            Impossible,
            "as above",
        ),
        (
            &[
                OutOfSync, ResyncNamespace, ResyncTail, ResyncContent, Synced, Paused, Frozen,
                CatchingUp,
            ],
            &[MarkedInSync],
            Impossible,
            "the mark is made only while still `EnteringSync`; that goes on to `LeavingSync`, whose \
             own mark is made after it",
        ),
        (
            &[
                OutOfSync, ResyncNamespace, ResyncTail, ResyncContent, EnteringSync, Synced, Paused, Frozen,
                CatchingUp,
            ],
            &[MarkedOutOfSync],
            Impossible,
            "`LeavingSync` alone asks for it, once, and is left by nothing else",
        ),

        (
            &[SecondaryOutOfSync, SecondaryResyncing, SecondarySynced, SecondaryDisconnected],
            &[Recovered],
            LateNews,
            "the connection was lost before `RecoveryDone` was done; or the primary sent it over \
             the next one",
        ),
        (
            &[SecondaryOutOfSync],
            &[MarkedOutOfSync],
            LateNews,
            "the connection of a resync was lost while the mark was being made",
        ),
        (
            &[SecondaryResyncing, SecondarySynced, SecondaryCatchingUp],
            &[LinkUpInSync, LinkUpOutOfSync],
            Impossible,
            "the next connection is served after the end of the last (P9)",
        ),
        (
            &[SecondaryOutOfSync, SecondaryDisconnected],
            &[LinkLost],
            Impossible,
            "there is no connection; one that comes up leads elsewhere at once",
        ),
        (
            &[SecondaryOutOfSync],
            &[LinkUpInSync],
            Impossible,
            "its mark says out of sync or, if that could not be written, the primary's does, or names another sync (P17)",
        ),
        (
            &[SecondarySynced, SecondaryDisconnected, SecondaryCatchingUp],
            &[MarkedInSync],
            Impossible,
            "`InSync` ends a resync, and only that",
        ),
        (
            &[
                SecondaryOutOfSync, SecondaryResyncing, SecondarySynced, SecondaryDisconnected,
                SecondaryCatchingUp,
            ],
            &[PauseOverContinue, PauseOverFreeze, PeerFailed, ImageSent, ImageDone, ContentDone],
            OtherRole,
            "this is what a primary does",
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
            LateNews,
            "it was under way when the disk failed; nothing but an operator leads out of that (P16)",
        ),
        (
            &[Poisoned],
            &[PauseOverContinue, PauseOverFreeze, Recovered],
            Impossible,
            "the core looks at pause and recovery in other states only",
        ),
        (
            &[SecondaryPoisoned],
            &[
                LinkUpInSync, LinkUpOutOfSync, LinkLost, Recovered, MarkedInSync, MarkedOutOfSync,
                StorePoisoned,
            ],
            LateNews,
            "it was under way when the disk failed; nothing but an operator leads out of that (P16)",
        ),
        (
            &[SecondaryPoisoned],
            &[PauseOverContinue, PauseOverFreeze, PeerFailed, ImageSent, ImageDone, ContentDone],
            OtherRole,
            "this is what a primary does",
        ),

        (
            State::VARIANTS,
            &[
                TakeoverDue, TakeoverGranted, OutOfSyncGranted, RaceLost, LeaseOver, LeaseRenewed,
                Deposed, FailoverAsked, PromoteAsked, PromoteForced, DemoteAsked,
            ],
            NoFailoverYet,
            "nobody sends it",
        ),
    ]
};

const STATES: usize = State::VARIANTS.len();
const TRIGGERS: usize = Trigger::VARIANTS.len();

/// In how many rows of the two tables each pair is.
#[expect(clippy::indexing_slicing, reason = "runs only while this is compiled")]
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

// The test below names the pair: `cargo test -p lockstep-repl --lib` compiles without this.
#[cfg(not(test))]
#[expect(clippy::indexing_slicing, reason = "runs only while this is compiled")]
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
    fn the_reason_given_is_that_of_the_row() {
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
    fn a_refusal_says_what_and_why() {
        let refused = State::Synced.next(Trigger::PromoteAsked).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "PromoteAsked is refused in state Synced: there is no failover yet"
        );
    }
}
