//! Good histories with one false fact: every fact that differs from the truth is caught.

use lockstep_sim::check::{Body, Dump, exactly_once, reads, survives};
use lockstep_sim::history::{Answer, Call, CallId, Fate, History, Outcome};
use lockstep_sim::op::{Mark, Op, Run as Bytes, WriteOp, mark};
use lockstep_sim::random::Random;
use lockstep_types::{Ino, MetaRequest};

use crate::world::{Faults, Run, run};

/// Returns the same history with another outcome of one call.
fn falsify(history: &History, id: CallId, outcome: &Outcome) -> History {
    enum What<'a> {
        Invoked(&'a Call),
        Returned(CallId, &'a Outcome),
    }
    let mut falsified = History::new(history.is_always());
    let mut moments = Vec::new();
    for (other, call) in history.calls().iter() {
        moments.push((call.invoked, What::Invoked(call)));
        if let Some((at, truth)) = &call.returned {
            let outcome = if other == id { outcome } else { truth };
            moments.push((*at, What::Returned(other, outcome)));
        }
    }
    moments.sort_by_key(|moment| moment.0);
    let mut events = history.nodes().events().iter().peekable();
    for (at, what) in moments {
        while let Some((at, node, event)) = events.next_if(|event| event.0 < at) {
            falsified.node(*node, *event, *at);
        }
        match what {
            What::Invoked(call) => {
                falsified.invoked(call.client, call.op.clone(), at);
            }
            What::Returned(id, outcome) => falsified.returned(id, outcome.clone(), at),
        }
    }
    falsified
}

fn done_writes(history: &History, ino: Ino) -> Vec<(WriteOp, &Call)> {
    let done = history
        .calls()
        .iter()
        .filter(|(_, call)| call.fate() == Fate::Done);
    let write = |call: &Call| match &call.op {
        Op::Write(write) if write.ino == ino => Some(*write),
        _ => None,
    };
    done.filter_map(|(_, call)| Some((write(call)?, call)))
        .collect()
}

fn covers(write: &WriteOp, offset: u64) -> bool {
    write.offset <= offset && offset < write.end()
}

/// Returns a write whose byte at `offset` a read from `invoked` to `over` cannot see: the byte was
/// overwritten before, or the write was invoked later.
fn unseeable(
    history: &History,
    ino: Ino,
    offset: u64,
    (invoked, over): (u64, u64),
) -> Option<Mark> {
    let writes = done_writes(history, ino);
    let covering = || writes.iter().filter(|(write, _)| covers(write, offset));
    let overwritten = |call: &Call| {
        covering().any(|(_, later)| call.over() < later.invoked && later.over() < invoked)
    };
    let unseeable = |(_, call): &&(WriteOp, &Call)| call.invoked > over || overwritten(call);
    let found = covering().find(unseeable);
    found.map(|(write, _)| write.mark)
}

/// Returns the runs, with one byte attributed to `mark`.
fn with_byte(runs: &[Bytes], offset: u64, mark: Mark) -> Vec<Bytes> {
    let piece = |from, to, mark| Bytes { from, to, mark };
    let cut = |run: &Bytes| {
        if !(run.from..run.to).contains(&offset) {
            return vec![*run];
        }
        vec![
            piece(run.from, offset, run.mark),
            piece(offset, offset + 1, Some(mark)),
            piece(offset + 1, run.to, run.mark),
        ]
    };
    let pieces = runs.iter().flat_map(cut);
    pieces.filter(|run| run.from < run.to).collect()
}

#[test]
fn a_byte_that_no_read_can_have_seen_is_caught() {
    let mut caught = 0;
    for seed in 5000..5150 {
        let history = run(seed, 150, Faults::Crashes).history;
        let mut random = Random::new(seed);
        for (id, call) in history.calls().iter() {
            let (Op::Read { ino, .. }, Some(Answer::Data { length, runs })) =
                (&call.op, call.answer())
            else {
                continue;
            };
            let Some(Bytes { from, to, .. }) = (!runs.is_empty()).then(|| *random.pick(runs))
            else {
                continue;
            };
            let offset = from + random.below(to - from);
            let times = (call.invoked, call.over());
            let Some(mark) = unseeable(&history, *ino, offset, times) else {
                continue;
            };
            let (length, runs) = (*length, with_byte(runs, offset, mark));
            let outcome = Ok(Answer::Data { length, runs });
            let judged = reads::check(&falsify(&history, id, &outcome));
            assert!(
                judged.is_err(),
                "seed {seed}, byte {offset} of {}",
                history.calls().show(id)
            );
            caught += 1;
        }
    }
    assert!(caught > 500, "{caught}");
}

/// Makes one byte of one file impossible, if there is such a file.
fn falsify_content(history: &History, last: &mut Dump, random: &mut Random) -> bool {
    for (ino, inode) in &mut last.inodes {
        let Body::File(bytes) = &mut inode.body else {
            continue;
        };
        let offset = random.below(bytes.len().max(1) as u64);
        let mark = unseeable(history, *ino, offset, (u64::MAX, u64::MAX));
        if let (Some(mark), false) = (mark, bytes.is_empty()) {
            bytes[usize::try_from(offset).unwrap()] = mark::fill(*ino, mark, offset, 1)[0];
            return true;
        }
    }
    false
}

#[test]
fn a_byte_that_cannot_be_left_is_caught() {
    let mut caught = 0;
    for seed in 6000..6100 {
        let Run { history, mut last } = run(seed, 150, Faults::Crashes);
        if falsify_content(&history, &mut last, &mut Random::new(seed)) {
            let judged = survives::check(&history, &last);
            assert!(judged.is_err(), "seed {seed}:\n{history}");
            caught += 1;
        }
    }
    assert!(caught > 30, "{caught}");
}

/// Falsifies one fact of the namespace. No operation produces these numbers and bytes.
fn falsify_store(last: &mut Dump, what: u64, random: &mut Random) {
    let inos: Vec<_> = last.inodes.keys().copied().collect();
    let live = |ino: &&Ino| last.inodes[*ino].nlink > 0;
    let ino = *random.pick(&inos.iter().filter(live).copied().collect::<Vec<_>>());
    let inode = last.inodes.get_mut(&ino).unwrap();
    match what {
        0 => inode.nlink += 1,
        1 => {
            inode
                .xattrs
                .insert(b"user.a".to_vec(), b"never set".to_vec());
        }
        2 => {
            last.inodes.remove(&ino);
        }
        3 if ino != Ino::ROOT => inode.mode ^= 0o1000,
        _ => {
            let Body::Directory(entries) = &mut last.inodes.get_mut(&Ino::ROOT).unwrap().body
            else {
                panic!("the root is a directory");
            };
            let last_entry = entries.pop().expect("every client has made a directory");
            drop(last_entry);
        }
    }
}

#[test]
fn a_namespace_that_no_order_leaves_is_caught() {
    for seed in 7000..7150 {
        let Run { history, last } = run(seed, 150, Faults::Crashes);
        if last.inodes.len() < 3 {
            continue;
        }
        let mut random = Random::new(seed);
        let mut falsified = last.clone();
        falsify_store(&mut falsified, seed % 5, &mut random);
        let judged = exactly_once::decide(&history, &falsified);
        assert!(judged.is_err(), "seed {seed}: {judged:?}\n{history}");
    }
}

#[test]
fn an_answer_that_no_order_gives_is_caught() {
    let mut caught = 0;
    for seed in 8000..8100 {
        let Run { history, last } = run(seed, 150, Faults::Crashes);
        let answered = history.calls().iter().filter_map(|(id, call)| {
            let Some(Answer::Attr(attr)) = call.answer() else {
                return None;
            };
            let mut attr = *attr;
            attr.nlink += 40;
            Some((id, Ok(Answer::Attr(attr))))
        });
        let answered: Vec<_> = answered.collect();
        let (id, outcome) = Random::new(seed).pick(&answered).clone();
        let judged = exactly_once::decide(&falsify(&history, id, &outcome), &last);
        assert!(judged.is_err(), "seed {seed}: {judged:?}");
        caught += 1;
    }
    assert_eq!(caught, 100);
}

#[test]
fn an_operation_that_never_happened_is_caught() {
    let mut caught = 0;
    for seed in 9000..9100 {
        let Run { history, last } = run(seed, 150, Faults::Crashes);
        // Turns a refused removal into a successful one.
        let refused = history.calls().iter().find(|(_, call)| {
            let removes = matches!(
                call.op,
                Op::Change(MetaRequest::RemoveXattr { .. } | MetaRequest::Rmdir { .. })
            );
            removes && matches!(call.fate(), Fate::Refused(_)) && is_alone(&history, call)
        });
        if let Some((id, _)) = refused {
            let falsified = falsify(&history, id, &Ok(Answer::Done));
            let judged = exactly_once::decide(&falsified, &last);
            assert!(
                judged.is_err(),
                "seed {seed}: {judged:?}\n{}",
                history.calls().show(id)
            );
            caught += 1;
        }
    }
    assert!(caught > 20, "{caught}");
}

/// Whether no other change was in progress during a call.
fn is_alone(history: &History, call: &Call) -> bool {
    let beside = |other: &Call| {
        other.invoked != call.invoked
            && other.invoked <= call.over()
            && call.invoked <= other.latest()
    };
    let mut others = history.calls().iter().map(|(_, other)| other);
    !others.any(|other| matches!(other.op, Op::Change(_)) && beside(other))
}
