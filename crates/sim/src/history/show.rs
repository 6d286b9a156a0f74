//! Text form of a history for people: one line per call or event.

use std::fmt;

use lockstep_types::Attr;

use super::{Answer, Call, CallId, CallRecord, History, Outcome};

impl CallRecord {
    /// Returns a call in one line.
    pub fn show(&self, id: CallId) -> String {
        format!("{:>4} {}", id.index(), self.get(id))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            client,
            op,
            invoked,
            returned,
        } = self;
        match returned {
            Some((at, outcome)) => {
                write!(f, "[{invoked}, {at}] client {client}: {op}: ")?;
                show_outcome(outcome, f)
            }
            None => write!(f, "[{invoked}, open) client {client}: {op}"),
        }
    }
}

fn show_outcome(outcome: &Outcome, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match outcome {
        Ok(answer) => write!(f, "{answer}"),
        Err(errno) => write!(f, "{errno:?}"),
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(f, "done"),
            Self::Attr(attr) => show_attr(attr, f),
            Self::Data { length, runs } => {
                write!(f, "{length} bytes:")?;
                runs.iter().try_for_each(|run| match run.mark {
                    Some(mark) => write!(f, " [{}, {}) {mark:?}", run.from, run.to),
                    None => write!(f, " [{}, {}) zeros", run.from, run.to),
                })
            }
            Self::Entries(entries) => entries
                .iter()
                .try_for_each(|entry| write!(f, " {:?} #{}", entry.name, entry.ino)),
            Self::Value(value) => write!(f, "\"{}\"", value.escape_ascii()),
        }
    }
}

fn show_attr(attr: &Attr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Attr {
        ino,
        kind,
        mode,
        uid,
        gid,
        nlink,
        size,
        ..
    } = attr;
    write!(
        f,
        "#{ino} {kind:?} mode {mode:o} owner {uid}:{gid} links {nlink} size {size}"
    )
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut events = self.nodes.events.iter().peekable();
        for (id, call) in self.calls.iter() {
            while let Some((at, node, event)) = events.next_if(|event| event.0 < call.invoked) {
                writeln!(f, "     {at} {node:?}: {event:?}")?;
            }
            writeln!(f, "{}", self.calls.show(id))?;
        }
        events.try_for_each(|(at, node, event)| writeln!(f, "     {at} {node:?}: {event:?}"))
    }
}
