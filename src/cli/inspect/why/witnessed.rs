//! The effect of each failure with a witness: the differences from a datastore without one (docs/protocol/roles.md).
//!
//! In the texts `TAKEOVER`, `ALONE` and `LEASE` stand for the times of a failover. This node knows only whether the witness
//! answers this node.

use lockstepfs::config::OnPeerLoss;

use super::outlook::{FitCopies, NO_CHANGE, Outlook};
use super::protection::WitnessProtection;
use super::situation::{Situation, SituationPart};

const OTHER_TAKES_OVER: &str = "nothing acknowledged is lost; the other node takes over by itself, TAKEOVER after it has lost the connection";
const THIS_TAKES_OVER: &str = "nothing acknowledged is lost; this node takes over by itself, TAKEOVER after it has lost the connection";
const OTHER_NOT_YET: &str = "nothing acknowledged is lost; nothing serves until this node is back: the witness does not let the other node take over yet";
const THIS_NOT_YET: &str = "nothing acknowledged is lost; nothing serves until the primary is back: this node has not heard from the witness \
                            that it may take over, and asks every 5 s";
const OTHER_IF_HEARD: &str = "nothing acknowledged is lost; nothing serves until this node is back, or until the other node reaches the witness \
                              and may take over";
const THIS_IF_HEARD: &str = "nothing acknowledged is lost; nothing serves until the primary is back, or until this node reaches the witness \
                             and may take over";
const SERVES_ALONE: &str =
    "changes wait for ALONE; then this node serves alone by the answer of the witness";
const NOBODY_DECIDES: &str = "nothing serves until the nodes are connected again, or the witness decides: changes wait, and reads end with the \
                              lease, after LEASE";
const FROZEN: &str = "nothing serves until the nodes are connected again (on_peer_loss = \"freeze\"): changes wait, and reads end with the \
                      lease, after LEASE";
const FIRST_HEARD: &str = "the node that the witness hears first serves: normally the primary, alone, after ALONE; a primary that does not \
                           reach the witness is replaced after TAKEOVER";
const FROZEN_CUT: &str = "the other node takes over, TAKEOVER after it has lost the connection: this node never serves alone (on_peer_loss = \
                          \"freeze\")";
const PRIMARY_LOSES: &str = "changes wait; after ALONE the primary serves alone by the answer of the witness, or nothing serves until this node is \
                             back (its on_peer_loss)";
const PRIMARY_IF_HEARD: &str = "changes wait; the primary serves alone if it reaches the witness, or nothing serves until the nodes are connected \
                                again (its on_peer_loss)";
const WITNESS_IDLE: &str = "nothing changes while the nodes are connected; but no node takes over until the witness is back, and a primary that \
                            loses the other node serves nothing";
const WITNESS_IS_SILENT: &str = "nothing changes: the witness does not answer this node already";
const WITNESS_IS_EMPTY: &str =
    "nothing changes: the witness has no record, so it decides nothing already";
const NO_TAKEOVER: &str =
    "nothing changes: this copy is not complete, so this node takes over from nobody";
const FORCE: &str = "the other node, or the witness; if both are lost for good: `lockstep promote NAME --force-data-loss` on this node";
const FORCE_PAST_SILENT: &str = "a sync of the nodes, or the witness, which does not answer; if the witness is lost for good: `lockstep promote \
                                 NAME --force-data-loss` on this node";

const FORCE_PAST_PRIMARY: &str = "the primary or the witness; if both are lost for good: `lockstep promote NAME --force-data-loss` on this node";
const REFUSES: &str = "the primary: the witness does not let this node take over, because the primary serves alone, or because the witness has no \
                       record";
const FORCE_PAST_REFUSAL: &str = "the primary: the witness does not let this node take over, because the primary serves alone, or because the \
                                  witness has no record; if the primary is dead for good: `lockstep promote NAME --force-data-loss` on this \
                                  node";
const EITHER: &str = "the other node, or the witness";
const SYNC_OR_WITNESS: &str = "a sync of the nodes, or the witness, which does not answer";

/// `offer` names a promotion by force, which needs a complete copy on a disk that works.
const fn if_fit(fit: FitCopies, offer: &'static str, otherwise: &'static str) -> &'static str {
    if fit.own { offer } else { otherwise }
}

/// Changes the explanation of a datastore without a witness into that of one with a witness. Returns `base` for a datastore
/// without a witness.
pub(super) const fn with_witness(
    base: Outlook,
    situation: Situation,
    protection: WitnessProtection,
    policy: OnPeerLoss,
    fit: FitCopies,
) -> Outlook {
    if matches!(protection, WitnessProtection::NoWitness) {
        return base;
    }
    match situation.part() {
        SituationPart::Serving => serving(base, situation, protection, policy, fit),
        SituationPart::Following => following(base, situation, protection, fit),
        SituationPart::Other => not_serving(base, situation, protection, policy, fit),
    }
}

const fn witness_fails(protection: WitnessProtection) -> &'static str {
    match protection {
        WitnessProtection::Silent => WITNESS_IS_SILENT,
        WitnessProtection::Empty => WITNESS_IS_EMPTY,
        _ => WITNESS_IDLE,
    }
}

/// A primary of a complete secondary fails.
const fn primary_fails(protection: WitnessProtection) -> &'static str {
    match protection {
        WitnessProtection::Protects => OTHER_TAKES_OVER,
        WitnessProtection::Silent => OTHER_IF_HEARD,
        _ => OTHER_NOT_YET,
    }
}

/// The primary of this secondary, whose copy is complete, fails.
const fn own_primary_fails(protection: WitnessProtection) -> &'static str {
    match protection {
        WitnessProtection::Protects => THIS_TAKES_OVER,
        WitnessProtection::Silent => THIS_IF_HEARD,
        _ => THIS_NOT_YET,
    }
}

/// This primary loses its secondary.
const fn secondary_fails(protection: WitnessProtection, policy: OnPeerLoss) -> &'static str {
    match policy {
        OnPeerLoss::Freeze => FROZEN,
        OnPeerLoss::Continue if protection.decides() => SERVES_ALONE,
        OnPeerLoss::Continue => NOBODY_DECIDES,
    }
}

/// The link between this primary and a complete secondary fails.
const fn link_fails(protection: WitnessProtection, policy: OnPeerLoss) -> &'static str {
    match (protection, policy) {
        (WitnessProtection::Protects, OnPeerLoss::Freeze) => FROZEN_CUT,
        (WitnessProtection::Protects, OnPeerLoss::Continue) => FIRST_HEARD,
        (WitnessProtection::Silent, _) => {
            "nothing serves, unless the other node reaches the witness: then that node takes over, after TAKEOVER"
        }
        _ => secondary_fails(protection, policy),
    }
}

const fn serving(
    base: Outlook,
    situation: Situation,
    protection: WitnessProtection,
    policy: OnPeerLoss,
    fit: FitCopies,
) -> Outlook {
    let in_sync = Outlook {
        this_fails: primary_fails(protection),
        other_fails: secondary_fails(protection, policy),
        link_fails: link_fails(protection, policy),
        witness_fails: witness_fails(protection),
        ..base
    };
    match situation {
        Situation::LeavingSync => Outlook {
            waits_for: if protection.decides() {
                "the answer of the witness that this node may go on alone"
            } else {
                if_fit(fit, FORCE_PAST_SILENT, SYNC_OR_WITNESS)
            },
            witness_fails: match protection {
                WitnessProtection::Protects | WitnessProtection::DoesNotProtect => {
                    "changes wait on until the nodes are in sync again, or the witness is back"
                }
                _ => witness_fails(protection),
            },
            ..in_sync
        },
        Situation::Paused => Outlook {
            waits_for: match policy {
                _ if !protection.decides() => if_fit(fit, FORCE, EITHER),
                OnPeerLoss::Continue => {
                    "the other node, or the answer of the witness, which this node asks ALONE after the loss of the connection"
                }
                OnPeerLoss::Freeze if matches!(protection, WitnessProtection::Protects) => {
                    "the other node, which takes over if it runs (on_peer_loss = \"freeze\")"
                }
                OnPeerLoss::Freeze => "the other node, without limit (on_peer_loss = \"freeze\")",
            },
            other_fails: base.other_fails,
            link_fails: base.link_fails,
            witness_fails: if protection.decides() {
                "nothing serves until the nodes are connected again, or the witness is back"
            } else {
                witness_fails(protection)
            },
            ..in_sync
        },
        Situation::Steadying | Situation::Resyncing | Situation::Alone => {
            alone(base, situation, protection)
        }
        _ => in_sync,
    }
}

/// A primary with the only complete copy.
const fn alone(base: Outlook, situation: Situation, protection: WitnessProtection) -> Outlook {
    match situation {
        Situation::Steadying | Situation::Resyncing => Outlook {
            witness_fails: match protection {
                WitnessProtection::Silent => WITNESS_IS_SILENT,
                _ => {
                    "nothing changes for programs; but no node takes over after the resync until the witness is back"
                }
            },
            ..base
        },
        _ => Outlook {
            this_fails: if protection.decides() {
                base.this_fails
            } else {
                "nothing serves until this node is back, and reaches the other node or a witness that decides; only its copy is complete"
            },
            witness_fails: match protection {
                WitnessProtection::Silent => WITNESS_IS_SILENT,
                _ => {
                    "nothing changes for programs; but once this node ends, it serves again only when it reaches the witness or the other node"
                }
            },
            ..base
        },
    }
}

const fn following(
    base: Outlook,
    situation: Situation,
    protection: WitnessProtection,
    fit: FitCopies,
) -> Outlook {
    match situation {
        Situation::BeingResynced | Situation::Incomplete => Outlook {
            witness_fails: NO_TAKEOVER,
            ..base
        },
        Situation::CutOff => Outlook {
            waits_for: match protection {
                WitnessProtection::Protects => {
                    "the primary; otherwise this node takes over, TAKEOVER after the loss of the connection"
                }
                WitnessProtection::Silent => {
                    if_fit(fit, FORCE_PAST_PRIMARY, "the primary or the witness")
                }
                _ => if_fit(fit, FORCE_PAST_REFUSAL, REFUSES),
            },
            other_fails: own_primary_fails(protection),
            witness_fails: match protection {
                WitnessProtection::Silent => WITNESS_IS_SILENT,
                _ => "this node does not take over until the witness is back",
            },
            ..base
        },
        _ => Outlook {
            this_fails: PRIMARY_LOSES,
            other_fails: own_primary_fails(protection),
            link_fails: match protection {
                WitnessProtection::Protects => FIRST_HEARD,
                _ => PRIMARY_IF_HEARD,
            },
            witness_fails: witness_fails(protection),
            ..base
        },
    }
}

const fn not_serving(
    base: Outlook,
    situation: Situation,
    protection: WitnessProtection,
    policy: OnPeerLoss,
    fit: FitCopies,
) -> Outlook {
    match situation {
        Situation::PrimaryFailedDisk {
            is_other_complete: true,
        } => Outlook {
            waits_for: match protection {
                WitnessProtection::Protects => {
                    "the other node, which takes over by itself; then an operator: see \"A disk has failed\" in docs/operations/disks.md"
                }
                _ => base.waits_for,
            },
            this_fails: primary_fails(protection),
            other_fails: "reads go on here for LEASE, until the lease is over; then nothing serves until the other node is back",
            link_fails: match protection {
                WitnessProtection::Protects => {
                    "the other node takes over by itself; reads end here"
                }
                _ => {
                    "reads go on here for LEASE, until the lease is over; then nothing serves until the nodes are connected again, or the other \
                     node may take over"
                }
            },
            witness_fails: match protection {
                WitnessProtection::Silent => WITNESS_IS_SILENT,
                _ => "the other node does not take over until the witness is back",
            },
            ..base
        },
        Situation::SecondaryFailedDisk => Outlook {
            witness_fails: NO_TAKEOVER,
            ..base
        },
        Situation::Undecided => undecided(protection, policy, fit),
        Situation::NotStarted | Situation::PrimaryFailedDisk { .. } => Outlook {
            witness_fails: NO_CHANGE,
            ..base
        },
        _ => Outlook {
            witness_fails: witness_fails(protection),
            ..base
        },
    }
}

/// A primary whose lease is over, or which has just started.
const fn undecided(protection: WitnessProtection, policy: OnPeerLoss, fit: FitCopies) -> Outlook {
    const NOBODY_SERVES: &str =
        "nothing serves until the other node is back, or the witness decides";
    Outlook {
        why: "the other node may have taken over: it has not answered this node for the time of the lease (LEASE), or since the start of \
              this node",
        waits_for: match policy {
            _ if !protection.decides() => if_fit(fit, FORCE, EITHER),
            OnPeerLoss::Continue => {
                "an answer of the other node, or the answer of the witness that no other node serves"
            }
            OnPeerLoss::Freeze => "an answer of the other node (on_peer_loss = \"freeze\")",
        },
        this_fails: match protection {
            WitnessProtection::Protects => {
                "the other node takes over by itself, if it has not done so already"
            }
            _ => {
                "nothing serves, unless the other node has taken over: see `lockstep why NAME` there"
            }
        },
        other_fails: match policy {
            OnPeerLoss::Continue if protection.decides() => {
                "this node serves alone by the answer of the witness, unless the other node has taken over"
            }
            _ => NOBODY_SERVES,
        },
        link_fails: match policy {
            OnPeerLoss::Continue if protection.decides() => {
                "the node that the witness hears first serves"
            }
            OnPeerLoss::Freeze if matches!(protection, WitnessProtection::Protects) => {
                "the other node takes over by itself"
            }
            _ => NOBODY_SERVES,
        },
        witness_fails: match protection {
            WitnessProtection::Silent => WITNESS_IS_SILENT,
            WitnessProtection::Empty => WITNESS_IS_EMPTY,
            _ => "nothing serves until the nodes are connected, or the witness is back",
        },
    }
}
