//! Derives from later sights which changes survived a loss. This narrows the search. It decides
//! nothing that the search would not decide itself.
//!
//! Some changes leave a trace that no other change can leave. The trace of a made inode is its
//! number. The trace of a name that only one call touches (see [`untouched`](crate::check::untouched)) is
//! the inode to which it leads. A call that sees the trace after a loss proves that the loss did
//! not undo the change. A call that should see the trace and does not proves that one of the losses
//! since the change undid it.
//!
//! Only certain changes are considered, because a change that may not have happened may also have
//! happened later.

use std::collections::BTreeMap;

use lockstep_types::{FileName, Ino, MetaRequest};

use super::step::{Expected, Sight, Step, What};
use crate::check::dump::{Body, Dump};
use crate::history::loss::Loss;

/// The times at which a trace was seen and missed.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Invocation of the last call that saw the trace.
    last: u64,
    /// Invocation and return of the call that missed the trace and returned first. `None` if no
    /// call missed it.
    missed: Option<(u64, u64)>,
}

/// All traces that were seen or missed.
struct Traces {
    inodes: BTreeMap<Ino, u64>,
    names: BTreeMap<(Ino, FileName), Seen>,
}

/// Notes on each step the evidence of the other steps and of the end. `untouched` are the names
/// that one call made and no other call touched.
pub(super) fn narrow(
    steps: &mut [Step<'_>],
    losses: &[Loss],
    last: &Dump,
    untouched: Vec<(Ino, FileName)>,
) {
    let names = untouched.into_iter().map(|name| (name, Seen::default()));
    let mut traces = Traces {
        inodes: BTreeMap::new(),
        names: names.collect(),
    };
    for step in steps.iter() {
        traces.note(step);
    }
    traces.note_end(last);
    for step in steps.iter_mut().filter(|step| step.is_certain) {
        traces.narrow(step, losses);
    }
}

impl Traces {
    fn see_inode(&mut self, ino: Ino, at: u64) {
        let seen = self.inodes.entry(ino).or_default();
        *seen = at.max(*seen);
    }

    fn see_name(&mut self, parent: Ino, name: &FileName, at: u64) {
        if let Some(seen) = self.names.get_mut(&(parent, name.clone())) {
            seen.last = seen.last.max(at);
        }
    }

    fn miss_name(&mut self, parent: Ino, name: &FileName, (invoked, over): (u64, u64)) {
        if let Some(seen) = self.names.get_mut(&(parent, name.clone())) {
            let missed = seen.missed.get_or_insert((invoked, over));
            if over < missed.1 {
                *missed = (invoked, over);
            }
        }
    }

    fn note(&mut self, step: &Step<'_>) {
        let at = step.invoked;
        match step.what {
            What::Change(_, Expected::Attr(attr)) | What::Sight(Sight::Attr(attr)) => {
                self.see_inode(attr.ino, at);
            }
            What::Sight(Sight::File(ino) | Sight::Target(ino, _)) => self.see_inode(ino, at),
            What::Sight(Sight::Entry(parent, name, Some(_))) => self.see_name(parent, name, at),
            What::Sight(Sight::Entry(parent, name, None)) => {
                self.miss_name(parent, name, (at, step.over));
            }
            _ => {}
        }
    }

    fn note_end(&mut self, last: &Dump) {
        for (ino, inode) in &last.inodes {
            self.see_inode(*ino, u64::MAX);
            if let Body::Directory(entries) = &inode.body {
                for entry in entries {
                    self.see_name(*ino, &entry.name, u64::MAX);
                }
            }
        }
        for ((parent, name), seen) in &mut self.names {
            if last.lookup(*parent, name).is_none() {
                seen.missed.get_or_insert((u64::MAX, u64::MAX));
            }
        }
    }

    fn narrow(&self, step: &mut Step<'_>, losses: &[Loss]) {
        let What::Change(request, Expected::Attr(_) | Expected::Success) = step.what else {
            return;
        };
        let (parent, name) = match request {
            MetaRequest::Create {
                parent, name, ino, ..
            } => {
                step.seen_until = self.inodes.get(ino).copied().unwrap_or(0);
                (*parent, name)
            }
            MetaRequest::Link { parent, name, .. } => (*parent, name),
            _ => return,
        };
        let Some(seen) = self.names.get(&(parent, name.clone())) else {
            return;
        };
        step.seen_until = step.seen_until.max(seen.last);
        if let Some((invoked, over)) = seen.missed.filter(|missed| missed.0 > step.over) {
            let may_take = |loss: &&Loss| loss.at > step.invoked && loss.at < over;
            let mut takers = losses.iter().filter(may_take);
            let taker = takers.next().filter(|loss| {
                loss.at > step.over && loss.at < invoked && loss.at > step.seen_until
            });
            step.lost_at = taker
                .filter(|_| takers.next().is_none())
                .map(|loss| loss.at);
        }
    }
}
