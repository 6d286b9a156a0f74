//! Crashes at every call, with every kind of loss, against an owner who remembers everything.

use lockstep_intentlog::{IntentLog, LogError, Position, Record};

use crate::sim_backing::{Random, SimBacking};
use crate::{DIR, Found, open, options, read, record};

const SEGMENT_BYTES: u64 = 8192;

/// What an owner knows of its log, and holds the log to.
#[derive(Default)]
struct Owner {
    /// Appended and not covered by a checkpoint.
    records: Found,
    /// How many of them were synced.
    synced: usize,
    /// Where the last checkpoint ends.
    kept: Position,
    /// Beyond every position the log ever gave.
    beyond: Position,
    appended: u64,
    /// A record whose append failed.
    doubtful: Option<Record>,
}

impl Owner {
    fn append(&mut self, log: &IntentLog) -> Result<(), LogError> {
        let record = record(self.appended);
        match log.append(&record) {
            Ok(position) => {
                assert!(position >= self.beyond, "a position is given once");
                self.beyond = Position::new(position.get() + 1);
                self.records.push((position, record));
                self.appended += 1;
                Ok(())
            }
            Err(LogError::Full { .. }) => {
                self.checkpoint(log, log.tail());
                Ok(())
            }
            Err(error) => {
                self.doubtful = Some(record);
                Err(error)
            }
        }
    }

    fn sync(&mut self, log: &IntentLog, record: usize) -> Result<(), LogError> {
        let Some((position, _)) = self.records.get(record) else {
            return Ok(());
        };
        log.sync(*position)?;
        assert!(log.durable() > *position);
        self.synced = self.synced.max(record + 1);
        Ok(())
    }

    /// The store behind has taken in everything before `position`, durably.
    fn checkpoint(&mut self, log: &IntentLog, position: Position) {
        let covered = self.records.partition_point(|(at, _)| *at < position);
        self.records.drain(..covered);
        self.synced = self.synced.saturating_sub(covered);
        self.kept = self.kept.max(position);
        log.cut(position);
    }

    /// Compares what a log holds after a crash with what it must hold.
    fn check(&self, found: &Found, whole: bool) {
        let least = if whole {
            self.records.len()
        } else {
            self.synced
        };
        assert!(found.len() >= least, "{} of {least} records", found.len());
        let known = found.len().min(self.records.len());
        assert_eq!(found[..known], self.records[..known]);
        if let [(_, more), rest @ ..] = &found[known..] {
            assert_eq!(Some(more), self.doubtful.as_ref());
            assert!(rest.is_empty());
        }
    }

    /// Goes on with what the log holds after a crash: all of it is durable.
    fn resume(&mut self, found: Found) {
        self.synced = found.len();
        self.records = found;
        self.doubtful = None;
    }

    /// For opening after a crash: of the process alone if the log is `whole`.
    fn options(&self, whole: bool) -> lockstep_intentlog::LogOptions {
        lockstep_intentlog::LogOptions {
            keep_from: Some(self.kept),
            is_whole: whole,
            ..options(SEGMENT_BYTES)
        }
    }
}

/// A crash: of the process alone, or of the machine with some share of what was not synced kept.
fn crash(disk: &SimBacking, random: &mut Random) -> (SimBacking, bool) {
    match random.below(5) {
        0 => (disk.fork(), true),
        share => (
            disk.power_loss(random, [0, 10, 50, 90][size(share - 1)]),
            false,
        ),
    }
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// Opens after a crash; the first attempt may crash as well.
fn reopen(
    owner: &mut Owner,
    mut disk: SimBacking,
    mut whole: bool,
    random: &mut Random,
) -> (SimBacking, IntentLog) {
    if random.coin() {
        disk.stop_after(1 + random.below(6));
        if let Ok((_, found)) = open(&disk, &owner.options(whole)) {
            owner.check(&found, whole);
            owner.resume(found);
        }
        let (after, process_only) = crash(&disk, random);
        (disk, whole) = (after, whole && process_only);
    }
    let seen = read(&disk, &owner.options(whole)).unwrap();
    let (log, found) = open(&disk, &owner.options(whole)).unwrap();
    assert_eq!(seen, found, "reading alone and opening agree");
    owner.check(&found, whole);
    let cold = read(&disk.power_loss(random, 0), &owner.options(false)).unwrap();
    assert_eq!(cold, found, "what was replayed is durable");
    owner.resume(found);
    (disk, log)
}

fn random_step(owner: &mut Owner, log: &IntentLog, random: &mut Random) -> Result<(), LogError> {
    let any = size(random.below(owner.records.len().max(1) as u64));
    match random.below(20) {
        0..14 => owner.append(log),
        14..18 => owner.sync(log, any),
        18 => {
            if let Some((position, _)) = owner.records.get(any) {
                owner.checkpoint(log, *position);
            }
            Ok(())
        }
        _ if log.needs_checkpoint() => {
            owner.checkpoint(log, log.tail());
            Ok(())
        }
        _ => Ok(()),
    }
}

#[test]
fn a_life_of_crashes_loses_nothing_synced_and_invents_nothing() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut owner = Owner::default();
        let mut disk = SimBacking::default();
        let mut log = IntentLog::create(&disk, DIR, &options(SEGMENT_BYTES)).unwrap();
        for _ in 0..12 {
            disk.stop_after(1 + random.below(120));
            while random_step(&mut owner, &log, &mut random).is_ok() {}
            let (after, whole) = crash(&disk, &mut random);
            (disk, log) = reopen(&mut owner, after, whole, &mut random);
        }
    }
}

/// One life without surprises: fills several segments, syncs and cuts now and then.
fn script(owner: &mut Owner, log: &IntentLog) -> Result<(), LogError> {
    for step in 0..150 {
        owner.append(log)?;
        if step % 7 == 3 {
            owner.sync(log, owner.records.len() - 1 - step % 3)?;
        }
        if step % 31 == 30 {
            let (position, _) = owner.records[owner.records.len() - 5];
            owner.checkpoint(log, position);
        }
    }
    Ok(())
}

fn calls_of_script() -> u64 {
    let disk = SimBacking::default();
    let log = IntentLog::create(&disk, DIR, &options(SEGMENT_BYTES)).unwrap();
    let before = disk.calls();
    script(&mut Owner::default(), &log).unwrap();
    disk.calls() - before
}

#[test]
fn a_crash_at_every_call_keeps_the_promises() {
    let calls = calls_of_script();
    assert!(calls > 150);
    for stop in 1..=calls {
        let disk = SimBacking::default();
        let log = IntentLog::create(&disk, DIR, &options(SEGMENT_BYTES)).unwrap();
        let mut owner = Owner::default();
        disk.stop_after(stop);
        script(&mut owner, &log).unwrap_err();
        let killed = read(&disk.fork(), &owner.options(true)).unwrap();
        owner.check(&killed, true);
        for (seed, keep) in [(1, 0), (2, 20), (3, 50), (4, 50), (5, 50), (6, 80), (7, 95)] {
            let mut random = Random(stop * 100 + seed);
            let after = disk.power_loss(&mut random, keep);
            let (log, found) = open(&after, &owner.options(false)).unwrap();
            owner.check(&found, false);
            log.append(&record(1)).unwrap();
            let again = read(&after.fork(), &owner.options(true)).unwrap();
            assert_eq!(again.len(), found.len() + 1);
            assert_eq!(again[..found.len()], found);
        }
    }
}

#[test]
fn a_creation_that_crashed_can_be_done_again() {
    for stop in 1..40 {
        for seed in 0..8 {
            let disk = SimBacking::default();
            disk.stop_after(stop);
            let made = IntentLog::create(&disk, DIR, &options(SEGMENT_BYTES)).is_ok();
            let mut random = Random(seed);
            let after = disk.power_loss(&mut random, 50);
            match open(&after, &options(SEGMENT_BYTES)) {
                Ok((_, found)) => assert!(found.is_empty()),
                Err(LogError::Missing { .. }) => {
                    assert!(!made);
                    IntentLog::create(&after, DIR, &options(SEGMENT_BYTES)).unwrap();
                }
                Err(error) => panic!("after call {stop}: {error}"),
            }
        }
    }
}
