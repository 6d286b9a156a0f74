//! The trash of a schedule: an operator empties it, and at the end the judge compares both nodes and has everything restored.
//!
//! No client sees the trash. Where nothing may be lost, each inode that a client has made is still there at the end, with a name or in the trash. A restored
//! inode has the content and the attributes that it had, on both nodes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lockstep_driver::Datastore;
use lockstep_driver::report::{RestoreQuestion, TrashCommand};
use lockstep_fs::StoreView;
use lockstep_fs::record::TrashMark;
use lockstep_types::settings::Role;
use lockstep_types::{Ino, MetaRequest, Timestamp};
use parking_lot::Mutex;

use super::cluster::Cluster;
use super::faults::Fault;
use super::on_disk::dump::dump;
use super::operator::Operator;
use super::plan::Plan;
use super::settings::IN_SYNC_WITHIN;
use crate::check::{Body, Dump};
use crate::history::Fate;
use crate::op::Op;

/// Time between two looks at an operator's command.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Most attempts to have one inode back.
const ATTEMPTS: u32 = 5;

type Marks = BTreeMap<Ino, TrashMark>;

/// The trash of a node.
fn marks(datastore: &Datastore) -> Result<Marks, String> {
    let mut marks = Marks::new();
    let each = &mut |ino, mark| {
        marks.insert(ino, mark);
        ControlFlow::Continue(())
    };
    let read = datastore.store().tree().each_in_trash(Ino::ROOT, each);
    read.map_err(|error| format!("trash: it cannot be read: {error:?}"))?;
    Ok(marks)
}

impl Plan {
    /// Returns whether an operator empties the trash.
    pub fn empties_trash(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|(_, fault)| matches!(fault, Fault::EmptyTrash))
    }

    /// Returns whether everything that a client has made is there at the end, with a name or in the trash.
    pub fn keeps_everything(&self) -> bool {
        let may_lose = |fault: &Fault| {
            let is_lost = fault.loses_power() || fault.may_lose_snapshots();
            is_lost || matches!(fault, Fault::EmptyTrash)
        };
        let is_kept = !self.settings.trash.is_off() && self.client_room.is_none();
        is_kept && !self.faults.iter().any(|(_, fault)| may_lose(fault))
    }
}

impl Operator {
    /// Empties the trash at the primary.
    pub(super) fn empty_trash(&self) {
        let side = self.cluster.nodes.machine(Role::Primary);
        let primary = self.cluster.nodes.of(side);
        if let (Some(process), Some(datastore)) = (primary.process(), primary.datastore()) {
            process.start(move || drop(datastore.trash(&TrashCommand::Empty { before: None })));
        }
    }
}

impl Cluster {
    /// Checks the trash of two nodes that are in sync and idle, and has everything restored.
    pub fn check_trash(&mut self, keeps_everything: bool) -> Result<(), String> {
        let [ours, theirs] = self.running()?;
        let (here, there) = (marks(&ours)?, marks(&theirs)?);
        if here != there {
            return Err(format!("trash: the nodes differ: {here:?} and {there:?}"));
        }
        let before = dump(ours.store())?;
        if keeps_everything {
            self.check_kept(&before)?;
        }
        let starts = self.recorder.lock().starts();
        self.restore_all()?;
        self.recorder.lock().tally.restored += here.len() as u64;
        let has_restarted = self.recorder.lock().starts() != starts;
        let [ours, theirs] = self.running()?;
        let (after, other) = (dump(ours.store())?, dump(theirs.store())?);
        if after != other {
            return Err("trash: the nodes differ after everything was restored".to_owned());
        }
        if !marks(&ours)?.is_empty() {
            return Err("trash: something stays after everything was restored".to_owned());
        }
        if has_restarted {
            // A loss of power may have taken bytes back that were never synced.
            return Ok(());
        }
        here.keys()
            .try_for_each(|ino| check_restored(*ino, &before, &after))
    }

    fn running(&self) -> Result<[Arc<Datastore>; 2], String> {
        let side = self.nodes.machine(Role::Primary);
        let all = [side, side.other()].map(|side| self.nodes.of(side).datastore());
        match all {
            [Some(ours), Some(theirs)] => Ok([ours, theirs]),
            _ => Err("trash: a node does not run at the end".to_owned()),
        }
    }

    /// Checks that each inode that a client has made is there.
    fn check_kept(&self, last: &Dump) -> Result<(), String> {
        let recorder = self.recorder.lock();
        let calls = recorder.history().calls().iter().map(|(_, call)| call);
        let made = calls.filter(|call| call.fate() == Fate::Done);
        let made = made.filter_map(|call| match &call.op {
            Op::Change(request) if matches!(request, MetaRequest::Create { .. }) => request.made(),
            _ => None,
        });
        let mut gone = made.filter(|ino| !last.inodes.contains_key(ino));
        match gone.next() {
            Some(ino) => Err(format!("trash: #{ino} is gone, though nothing was dropped")),
            None => Ok(()),
        }
    }

    /// Has everything restored. A planned loss of power may still come, and take restored names back that were not synced.
    fn restore_all(&mut self) -> Result<(), String> {
        for _ in 0..ATTEMPTS {
            let [ours, _] = self.running()?;
            let left = marks(&ours)?;
            drop(ours);
            if left.is_empty() {
                break;
            }
            for (ino, mark) in &left {
                self.restore(*ino, mark)?;
            }
            self.settle()?;
            self.until_in_sync(IN_SYNC_WITHIN)?;
        }
        Ok(())
    }

    /// Gives one inode a name in the root, by commands of an operator. A planned crash may still come, and a role may change by it.
    fn restore(&mut self, ino: Ino, mark: &TrashMark) -> Result<(), String> {
        let mut refusal = None;
        for _ in 0..ATTEMPTS {
            if !self.is_in_trash(ino)? {
                return Ok(());
            }
            refusal = self.try_to_restore(ino)?;
            self.until_in_sync(IN_SYNC_WITHIN)?;
        }
        Err(format!(
            "trash: #{ino} ({mark:?}) does not come back: {refusal:?}"
        ))
    }

    /// Gives the command once. Returns its refusal, if there is one.
    fn try_to_restore(&mut self, ino: Ino) -> Result<Option<String>, String> {
        let primary = self.nodes.of(self.nodes.machine(Role::Primary));
        let (Some(datastore), Some(process)) = (primary.datastore(), primary.process()) else {
            return Ok(None);
        };
        let question = RestoreQuestion {
            inode: Some(ino.get()),
            to: Some(format!("back {ino}").into_bytes()),
            ..RestoreQuestion::default()
        };
        let done = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&done);
        process.start(move || {
            *slot.lock() = Some(datastore.trash(&TrashCommand::Restore(question)));
        });
        let starts = |cluster: &Self| cluster.recorder.lock().starts();
        let (start, before) = (self.now(), starts(self));
        while done.lock().is_none() && starts(self) == before {
            self.run_for(LOOK_EVERY)?;
            self.check_wait(start, IN_SYNC_WITHIN)?;
        }
        let outcome = done.lock().take();
        Ok(outcome
            .and_then(Result::err)
            .map(|refusal| refusal.to_string()))
    }

    fn is_in_trash(&self, ino: Ino) -> Result<bool, String> {
        let [ours, _] = self.running()?;
        Ok(marks(&ours)?.contains_key(&ino))
    }
}

/// Checks that an inode has come back as it was.
fn check_restored(ino: Ino, before: &Dump, after: &Dump) -> Result<(), String> {
    let (Some(was), Some(is)) = (before.inodes.get(&ino), after.inodes.get(&ino)) else {
        return Err(format!("trash: #{ino} is gone after it came back"));
    };
    let mut expected = was.clone();
    // Its name, and the times of a directory that gets names.
    (expected.nlink, expected.ctime) = (is.nlink, is.ctime);
    if let Body::Directory(_) = is.body {
        expected.mtime = is.mtime;
        expected.body = is.body.clone();
    }
    if is.nlink == 0 || expected != *is || is.ctime == Timestamp::default() {
        return Err(format!(
            "trash: #{ino} was {was:?}, and comes back as {is:?}"
        ));
    }
    Ok(())
}
