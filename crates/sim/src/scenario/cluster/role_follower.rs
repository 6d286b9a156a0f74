//! The roles of the nodes, as the schedule follows them: the node that serves, and the copies that count.
//!
//! The follower looks after each step of the world. An operator says before which copy is to be kept, and which node is to be
//! demoted. What follows from the acts of an operator happens when the nodes act.

use lockstep_repl::state::State;
use lockstep_types::Generation;
use lockstep_types::settings::Role;

use crate::scenario::checks::live_checks::LiveChecks;
use crate::scenario::nodes::copies::Copies;
use crate::scenario::nodes::{IN_SYNC, Nodes};
use crate::world::Side;

/// The node whose own changes are to be lost.
#[derive(Clone, Copy, Debug)]
pub struct Deposed {
    /// The machine of the node.
    pub side: Side,
    /// The node has served alone: so it follows nobody before it is demoted. With a witness, a node without data does.
    pub must_be_asked: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub struct RoleFollower {
    /// The copies, as far as a loss depends on them.
    pub copies: Copies,
    /// The machine whose copy is kept, once its node serves.
    pub kept: Option<Side>,
    /// The node whose own changes are to be lost, and that does not know it yet.
    pub to_demote: Option<Deposed>,
    /// An operator has accepted a loss in this schedule, has exchanged a disk, or has put a copy back beside a witness: then no
    /// node may lead by itself.
    pub has_operator_acted: bool,
    /// The node that an operator has told to become the primary, and that has not answered.
    pub unanswered: Option<Side>,
    /// The generation of which the witness has last made a machine the primary.
    decided: Option<Generation>,
}

impl RoleFollower {
    /// Returns the roles of two nodes that have never run.
    pub const fn new() -> Self {
        Self {
            copies: Copies::new(),
            kept: None,
            to_demote: None,
            has_operator_acted: false,
            unanswered: None,
            decided: None,
        }
    }

    /// Records the node that has begun to serve, and the copies that have become equal. `decided`: the generation and the machine
    /// in the record of the witness. Returns the states of both nodes, the primary first.
    pub fn follow(
        &mut self,
        nodes: &mut Nodes,
        decided: Option<(Generation, Side)>,
        checks: &mut LiveChecks,
    ) -> Result<[Option<State>; 2], String> {
        self.follow_witness(nodes, decided, checks);
        let role_changes = nodes.role_changes();
        if let Some(side) = nodes.look_for_server()? {
            self.follow_kept(nodes, side, checks)?;
            checks.before_service(nodes, side)?;
        }
        if nodes.role_changes() != role_changes {
            checks.after_role_change();
        }
        let states = nodes.states();
        for side in nodes.look_for_complete_copies(states) {
            // A copy that an operator makes the complete one is equal to none, unless a primary has made it equal meanwhile.
            let is_promoted = self.unanswered == Some(side);
            if !is_promoted || nodes.of(side).state() == Some(State::SecondarySynced) {
                checks.copy_is_equal(nodes, side);
            }
        }
        if nodes.look_for_sync(states) {
            self.unanswered = None;
            let secondary = nodes.machine(Role::Secondary);
            if self.copies.is_given_up(secondary) {
                // A copy that lacked nothing is in sync without a resync.
                checks.copy_is_equal(nodes, secondary);
            }
        }
        checks.check_caches(nodes, self.has_operator_acted);
        self.end_keeping_away(nodes, states);
        self.copies.look(nodes, states, checks.events_so_far());
        Ok(states)
    }

    /// Lets clients reach both nodes again once the nodes are in sync, also if the node that was kept away leads: then nobody
    /// demotes that node any more.
    fn end_keeping_away(&mut self, nodes: &mut Nodes, states: [Option<State>; 2]) {
        let [ours, theirs] = states;
        let [primary, secondary] = nodes.machines();
        let leader = match states {
            IN_SYNC => primary,
            _ if [theirs, ours] == IN_SYNC => secondary,
            _ => return,
        };
        nodes.keep_away(None);
        self.to_demote.take_if(|deposed| deposed.side == leader);
    }

    /// Records that the witness has made a machine the primary of a later generation. From then on only the copy of that
    /// machine counts, also before its node serves.
    fn follow_witness(
        &mut self,
        nodes: &Nodes,
        decided: Option<(Generation, Side)>,
        checks: &LiveChecks,
    ) {
        let Some((generation, side)) = decided else {
            return;
        };
        let is_later = self.decided.is_some_and(|known| generation > known);
        self.decided = Some(generation);
        if is_later && side != nodes.machine(Role::Primary) {
            checks.after_takeover(side);
        }
    }

    /// Goes on with the copy that was kept, now that its node serves. First judges what was answered before.
    ///
    /// The old primary may have mirrored operations since the operator acted, and may have given the role away by itself.
    fn follow_kept(
        &mut self,
        nodes: &Nodes,
        serving: Side,
        checks: &LiveChecks,
    ) -> Result<(), String> {
        if self.kept.take() == Some(serving) {
            let record = nodes.of(serving).role_record();
            let generation = record.map_or(Generation::FIRST, |record| record.generation);
            let behind_since = self.copies.behind_since(serving);
            checks.go_on_with(serving, behind_since, generation)?;
            self.copies.given_up(serving.other());
        }
        Ok(())
    }
}
