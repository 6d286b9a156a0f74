//! The meaning of each situation, and the effect of each failure in it.
//!
//! A failure of a node means: its process or its server stops, and the disk keeps its content. In the texts `NAME` stands for
//! the name of the datastore. The texts here are those of a datastore without a witness, where an operator decides.
//! `witnessed` changes them for a datastore with one.

use lockstep_driver::report::DatastoreStatus;
use lockstepfs::config::OnPeerLoss;

use super::situation::{Situation, SituationPart};

/// The explanation of a situation. Each text is one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outlook {
    /// The cause of the state.
    pub(super) why: &'static str,
    /// The event that ends the state, or the work that is missing.
    pub(super) waits_for: &'static str,
    /// The effect of a failure of this node.
    pub(super) this_fails: &'static str,
    /// The effect of a failure of the other node.
    pub(super) other_fails: &'static str,
    /// The effect of a cut between the nodes.
    pub(super) link_fails: &'static str,
    /// The effect of a failure of the witness.
    pub(super) witness_fails: &'static str,
}

const NOTHING: &str = "nothing";
pub(super) const NO_CHANGE: &str = "nothing changes for programs";
const NO_WITNESS: &str = "nothing changes: this datastore has no witness";
const NO_OTHER: &str = "there is no other node";
const SERVICE_ENDS: &str = "nothing acknowledged is lost; nothing serves until this node is back, or until `lockstep promote NAME` on the other node";
const ONLY_COPY: &str = "nothing serves until this node is back: only its copy is complete; if its disk is lost, so are the changes that the other copy lacks";
const THEY_MEET: &str = "the nodes connect by themselves once they reach each other";
const PAUSE: &str = "changes wait up to the pause limit (pause_limit_ms); then this node serves alone, and the other copy is out of date";
const FREEZE: &str =
    "changes wait until the nodes are connected again (on_peer_loss = \"freeze\"); reads go on";
const ALONE: &str = "this node serves alone; the resync begins again when the nodes are connected";
const STEADYING: &str = "nothing changes: this node serves alone already; the time begins anew when the nodes are connected";
const PRIMARY_PAUSES: &str = "the primary lets changes wait, and then goes on alone or waits on (its on_peer_loss); this node does not serve";
const PROMOTABLE: &str = "nothing acknowledged is lost; nothing serves until the primary is back, or until `lockstep promote NAME` on this node";
const NOT_PROMOTABLE: &str = "nothing serves until the primary is back: this copy is not complete; if the primary's disk is lost, see \"The primary is dead\" in docs/operations/roles.md";

const NOBODY_FIT: &str = "nothing serves until the other node is back: this copy may lack changes; if the other node's disk is lost, see \"The \
                          primary is dead\" in docs/operations/roles.md";
const OBSTACLE: &str = "an operator, who solves the problem that the reason names: a start of the other node does not help";
const REFUSED: &str = "nothing changes: the nodes refuse each other already";

/// Which copies may serve alone without the loss of an operation, as far as this node knows. A text offers a promotion of such a
/// copy only.
#[derive(Clone, Copy, Debug)]
pub(super) struct FitCopies {
    /// The copy of this node.
    pub(super) own: bool,
    /// The copy of the other node.
    pub(super) other: bool,
}

impl FitCopies {
    /// The copies by a status.
    pub(super) const fn of(store: &DatastoreStatus) -> Self {
        Self {
            own: store.is_fit(),
            other: store.is_peer_fit(),
        }
    }
}

impl Outlook {
    /// The explanation of a situation without a witness.
    pub(super) const fn without_witness(
        situation: Situation,
        policy: OnPeerLoss,
        fit: FitCopies,
    ) -> Self {
        match situation.part() {
            SituationPart::Serving => serving(situation, policy, fit),
            SituationPart::Following => following(situation, fit),
            SituationPart::Other => not_serving(situation, fit),
        }
    }

    /// The explanation of nodes that reach each other and refuse each other: they do not connect by themselves.
    pub(super) const fn behind_an_obstacle(self) -> Self {
        Self {
            waits_for: OBSTACLE,
            link_fails: REFUSED,
            ..self
        }
    }

    /// The texts in the order of the fields, without a witness.
    const fn of(
        (why, waits_for, this_fails, other_fails, link_fails): (
            &'static str,
            &'static str,
            &'static str,
            &'static str,
            &'static str,
        ),
    ) -> Self {
        Self {
            why,
            waits_for,
            this_fails,
            other_fails,
            link_fails,
            witness_fails: NO_WITNESS,
        }
    }
}

const fn loss(policy: OnPeerLoss) -> &'static str {
    match policy {
        OnPeerLoss::Continue => PAUSE,
        OnPeerLoss::Freeze => FREEZE,
    }
}

/// A primary that serves.
const fn serving(situation: Situation, policy: OnPeerLoss, fit: FitCopies) -> Outlook {
    let this_fails = if fit.other { SERVICE_ENDS } else { ONLY_COPY };
    let texts = match situation {
        Situation::InSync => (
            "both nodes hold every acknowledged operation, and each change goes to both",
            NOTHING,
            this_fails,
            loss(policy),
            loss(policy),
        ),
        Situation::Paused => (
            "the connection with the other node is lost, and the other copy is complete",
            match policy {
                OnPeerLoss::Continue => "the other node, or the end of the pause (pause_limit_ms)",
                OnPeerLoss::Freeze => "the other node, without limit (on_peer_loss = \"freeze\")",
            },
            this_fails,
            "nothing changes: changes wait for that node already",
            "nothing changes: changes wait already",
        ),
        Situation::LeavingSync => (
            "the other copy does not follow, and this node has not recorded that yet",
            "that record on the disk of this node; if it lasts, see its log",
            this_fails,
            loss(policy),
            loss(policy),
        ),
        Situation::Settling => (
            "the nodes settle the operations that were in flight, or this node records on its disk how complete the other copy is",
            "the end of that work; if it lasts, see the logs of both nodes",
            this_fails,
            loss(policy),
            loss(policy),
        ),
        Situation::Steadying => (
            "the nodes are connected, and the other copy lacks changes; connections were lost before, and programs waited each time",
            "a connection that stands for the time that the reason names; the resync then begins by itself",
            ONLY_COPY,
            STEADYING,
            STEADYING,
        ),
        Situation::Resyncing => (
            "the nodes are connected, and the other copy is being brought up to date",
            "the end of the resync",
            ONLY_COPY,
            ALONE,
            ALONE,
        ),
        _ => (
            "this node serves without the other node, whose copy lacks changes",
            "the other node; the nodes then get in sync by themselves",
            ONLY_COPY,
            "nothing changes: this node serves alone already",
            "nothing changes: the nodes are not connected",
        ),
    };
    Outlook::of(texts)
}

/// A secondary with a working disk.
const fn following(situation: Situation, fit: FitCopies) -> Outlook {
    let primary_fails = if fit.own { PROMOTABLE } else { NOT_PROMOTABLE };
    let texts = match situation {
        Situation::Following => (
            "this node is the secondary, and each change of the primary is on both nodes",
            NOTHING,
            PRIMARY_PAUSES,
            primary_fails,
            PRIMARY_PAUSES,
        ),
        Situation::CatchingUp => (
            "the nodes are connected again, and settle the operations that were in flight",
            "the end of that work; if it lasts, see the logs of both nodes",
            PRIMARY_PAUSES,
            primary_fails,
            PRIMARY_PAUSES,
        ),
        Situation::CutOff => (
            "the connection with the primary is lost; this copy was complete then, and the primary may have gone on alone since",
            if fit.own {
                "the primary; if it is dead: `lockstep promote NAME`"
            } else {
                "the primary"
            },
            "nothing changes for programs of the primary; while this node is away, there is no second copy",
            if fit.own {
                "nothing acknowledged is lost, unless the primary has gone on alone; nothing serves until the primary is back, or until \
                 `lockstep promote NAME` on this node"
            } else {
                NOT_PROMOTABLE
            },
            "nothing changes: the nodes are not connected",
        ),
        Situation::BeingResynced => (
            "the primary brings this copy up to date",
            "the end of the resync",
            "nothing changes for programs of the primary, which serves alone; the resync begins again when this node is back",
            NOT_PROMOTABLE,
            "nothing changes for programs of the primary, which serves alone; the resync begins again afterwards",
        ),
        _ => (
            "this node has no connection with the primary, and this copy may lack changes of it",
            "the primary, which then brings this copy up to date",
            NO_CHANGE,
            NOT_PROMOTABLE,
            "nothing changes: the nodes are not connected",
        ),
    };
    Outlook::of(texts)
}

/// A node that serves no changes, for a reason of its own.
const fn not_serving(situation: Situation, fit: FitCopies) -> Outlook {
    let texts = match situation {
        Situation::NotStarted => (
            "the store of this node is not open",
            "the next attempt of this node, which comes by itself",
            NO_CHANGE,
            "see `lockstep why NAME` on the other node",
            NO_CHANGE,
        ),
        Situation::Unmirrored => (
            "no other node is configured: this node serves alone",
            NOTHING,
            "nothing serves until this node is back",
            NO_OTHER,
            NO_OTHER,
        ),
        Situation::PrimaryFailedDisk { is_other_complete } => (
            "the disk of this node has failed: programs can read, and every change fails",
            "an operator: see \"A disk has failed\" in docs/operations/disks.md",
            if is_other_complete {
                "reads end, too; the other copy is complete: run `lockstep promote NAME` on the other node"
            } else {
                "reads end, too, until this node is back: no other copy is known to be complete"
            },
            "reads go on here, as far as the disk can be read",
            "reads go on here, as far as the disk can be read",
        ),
        Situation::SecondaryFailedDisk => (
            "the disk of this node has failed: this copy is not updated any more",
            "an operator: see \"A disk has failed\" in docs/operations/disks.md",
            NO_CHANGE,
            "nothing serves until the primary is back: do not use this copy",
            NO_CHANGE,
        ),
        Situation::Undecided => (
            "this node was the primary of a complete secondary when it stopped, and the other node may have been promoted since",
            if fit.own {
                "the other node; if that is dead and stays dead: `lockstep promote NAME`"
            } else {
                "the other node: this copy may lack changes"
            },
            "nothing serves, unless the other node was promoted: see `lockstep why NAME` there",
            if fit.own {
                "nothing serves until the other node is back, or until `lockstep promote NAME` on this node"
            } else {
                NOBODY_FIT
            },
            THEY_MEET,
        ),
        _ => (
            "the role of this node is about to change",
            "the end of the change, within seconds",
            "the record of the role on the disk decides when this node is back",
            "the role of this node stays, or nothing serves until the nodes meet: see `lockstep status`",
            THEY_MEET,
        ),
    };
    Outlook::of(texts)
}
