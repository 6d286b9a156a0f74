//! The injector of faults: it applies the faults of a schedule to a cluster, and ends them.
//!
//! A fault names a node by the role that the node has at that moment. The acts of an operator are faults of a schedule, too: the
//! [`Operator`] does them.

use std::time::Duration;

use lockstep_types::settings::Role;

use super::cluster::Cluster;
use super::faults::{Fault, OldDisk};
use super::operator::Operator;
use super::settings::IN_SYNC_WITHIN;
use crate::history::Stop;
use crate::world::Side;

/// The longest time until a process starts again, in microseconds.
const DOWN_MAX_US: u64 = 20_000;
/// Share of full disks on which other programs use the reserve too, in percent.
const RESERVE_USED_PERCENT: u64 = 25;
/// The end of a connection arrives within this time, and no node connects again.
const END_ARRIVES_WITHIN: Duration = Duration::from_millis(30);

/// See the head of this file.
pub struct FaultInjector {
    /// The operator, with the cluster.
    pub operator: Operator,
}

impl FaultInjector {
    /// Returns the injector of the faults of a cluster.
    pub const fn of(cluster: Cluster) -> Self {
        Self {
            operator: Operator::of(cluster),
        }
    }

    /// Applies a fault.
    pub fn apply(&mut self, fault: Fault) -> Result<(), String> {
        let cluster = &mut self.operator.cluster;
        let now = cluster.now();
        let network = &cluster.world.network;
        cluster.checks.before_fault(&cluster.nodes, network, now);
        if !fault.may_lose_snapshots() {
            return self.carry_out(fault);
        }
        cluster.snapshots.forget_kept();
        let done = self.carry_out(fault);
        // The node that loses its copy may have acknowledged snapshots until then.
        self.operator.cluster.snapshots.forget_kept();
        done
    }

    fn carry_out(&mut self, fault: Fault) -> Result<(), String> {
        let cluster = &mut self.operator.cluster;
        match fault {
            Fault::Restart(role, stop) => {
                let side = cluster.nodes.machine(role);
                cluster.stop(side, stop);
                let down = cluster.random.below(DOWN_MAX_US);
                cluster.run_for(Duration::from_micros(down))?;
                cluster.start(side);
            }
            Fault::RestartBoth(primary, secondary) => {
                let machines = cluster.nodes.machines().into_iter();
                for (side, stop) in machines.zip([primary, secondary]) {
                    cluster.stop(side, stop);
                }
                cluster.start_both();
            }
            Fault::Down(role, stop) => {
                let side = cluster.nodes.machine(role);
                cluster.stop(side, stop);
                cluster.nodes.of_mut(side).stays_down = true;
            }
            Fault::CleanShutdown(shutdown) => cluster.request_shutdown(shutdown),
            Fault::CrashAtCall { role, crash } => {
                let node = cluster.nodes.of_mut(cluster.nodes.machine(role));
                node.crash_at_call(crash, role, &cluster.coverage);
            }
            Fault::HoldThread(held) => cluster.hold_thread(held),
            Fault::HandOver => self.operator.hand_over(),
            Fault::TakeOver(stop) => self.operator.take_over(stop)?,
            Fault::EndStandStill => self.operator.end_stand_still()?,
            Fault::PromoteByForce(stop, disk) => {
                let is_lost = disk == OldDisk::Lost;
                self.operator.promote_by_force(stop, is_lost)?;
            }
            Fault::Demote => self.operator.demote_primary()?,
            Fault::ExchangeDisk => self.operator.exchange_secondary(),
            Fault::PutBack => self.operator.put_secondary_back(),
            Fault::Snapshot(act) => self.operator.change_snapshots(act),
            Fault::EmptyTrash => self.operator.empty_trash(),
            Fault::Heal => self.heal()?,
            other => {
                self.apply_to_network(other)?;
                self.apply_to_disk(other)?;
            }
        }
        Ok(())
    }

    /// Applies a fault of the network or of the witness. Does nothing for other faults.
    fn apply_to_network(&mut self, fault: Fault) -> Result<(), String> {
        let cluster = &mut self.operator.cluster;
        let machine = |role| cluster.nodes.machine(role);
        let (network, witness) = (&cluster.world.network, &cluster.world.witness);
        match fault {
            Fault::Disconnect => network.cut(&cluster.world.shared),
            Fault::CorruptFrame(role) => network.corrupt_next(machine(role)),
            Fault::Mute(role) => network.set_silent(machine(role), true),
            Fault::CutWitness(role) => witness.cut_off(machine(role), true),
            Fault::LoseAnswersOfWitness(role) => witness.lose_answers(machine(role), true),
            Fault::ReplaceWitness => witness.replace(),
            Fault::Isolate(role) => self.isolate(role)?,
            _ => {}
        }
        Ok(())
    }

    /// Applies a fault of a disk. Does nothing for other faults.
    fn apply_to_disk(&mut self, fault: Fault) -> Result<(), String> {
        let cluster = &mut self.operator.cluster;
        match fault {
            Fault::FailCall {
                role,
                class,
                nth,
                errno,
            } => {
                let side = cluster.nodes.machine(role);
                cluster.checks.expect_disk_errors(side);
                cluster.nodes.of_mut(side).fail_disk(class, nth, errno);
            }
            Fault::FailRoleWrite => {
                let side = cluster.nodes.machine(Role::Secondary);
                self.fail_next_role_write(side);
            }
            Fault::FillDisk(role) => {
                let side = cluster.nodes.machine(role);
                cluster.checks.expect_disk_errors(side);
                cluster.recorder.lock().expect_full_disks();
                let with_reserve = cluster.random.percent(RESERVE_USED_PERCENT);
                cluster.nodes.of_mut(side).disk.fill(with_reserve);
            }
            Fault::UnmountDisk => self.unmount_secondary()?,
            Fault::HangDisk(hang) => {
                let side = cluster.nodes.machine(Role::Secondary);
                cluster.nodes.of_mut(side).hang_disk(Some(hang));
            }
            _ => {}
        }
        Ok(())
    }

    /// Cuts a node off from the other node, whose connections end at once, and from the witness.
    fn isolate(&mut self, role: Role) -> Result<(), String> {
        let cluster = &mut self.operator.cluster;
        let side = cluster.nodes.machine(role);
        cluster.world.witness.cut_off(side, true);
        cluster.world.network.cut(&cluster.world.shared);
        cluster.run_for(END_ARRIVES_WITHIN)?;
        cluster.world.network.set_silent(side, true);
        Ok(())
    }

    fn unmount_secondary(&mut self) -> Result<(), String> {
        let cluster = &mut self.operator.cluster;
        let side = cluster.nodes.machine(Role::Secondary);
        let secondary = cluster.nodes.of(side);
        if secondary.disk.can_be_unmounted() && !secondary.needs_operator {
            cluster.stop(side, Stop::Process);
            let secondary = cluster.nodes.of_mut(side);
            secondary.node.set_role(Role::Secondary);
            secondary.disk.unmount()?;
            cluster.start(side);
        }
        Ok(())
    }

    fn remount(&mut self) {
        let cluster = &mut self.operator.cluster;
        for side in Side::BOTH {
            if cluster.nodes.of(side).disk.is_unmounted() {
                cluster.stop(side, Stop::Process);
                cluster.nodes.of_mut(side).disk.remount();
                cluster.start(side);
            }
        }
    }

    /// Makes the next write of a node's role file fail.
    pub fn fail_next_role_write(&mut self, side: Side) {
        let cluster = &mut self.operator.cluster;
        cluster.checks.expect_disk_errors(side);
        cluster.nodes.of_mut(side).fail_next_role_write();
    }

    /// Lets frames pass, repairs and mounts the disks, and starts both nodes.
    pub fn heal(&mut self) -> Result<(), String> {
        self.remount();
        for side in Side::BOTH {
            let cluster = &mut self.operator.cluster;
            cluster.world.network.set_silent(side, false);
            cluster.world.witness.cut_off(side, false);
            cluster.world.witness.lose_answers(side, false);
            let node = cluster.nodes.of_mut(side);
            node.mend_disk();
            if let Some(then) = &mut node.planned.after_shutdown {
                then.stays_down = false;
            }
            let is_repaired = std::mem::take(&mut node.needs_operator);
            if is_repaired {
                self.operator.repair(side)?;
            }
            let cluster = &mut self.operator.cluster;
            if is_repaired || cluster.nodes.of(side).stays_down {
                cluster.start(side);
            }
        }
        self.operator.finish()
    }

    /// Ends all faults and the clients: no acknowledged operation was lost, and both nodes become identical.
    pub fn end_in_sync(&mut self) -> Result<(), String> {
        self.heal()?;
        self.operator.until_in_sync(IN_SYNC_WITHIN)?;
        self.operator.cluster.stop_clients();
        self.operator.cluster.settle()?;
        self.operator.until_in_sync(IN_SYNC_WITHIN)?;
        self.operator.cluster.final_check()
    }
}
