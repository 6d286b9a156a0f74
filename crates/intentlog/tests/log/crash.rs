//! Crashes at every call, with every kind of loss, against an owner that remembers every record.

use lockstep_intentlog::{IntentLog, LogError, Position, Record};

use lockstep_lossy::disk::{Disk, Survivors, Verdict};
use lockstep_lossy::random::Random;

use crate::{Found, create, new_log, open, options, read, record};

const SEGMENT_BYTES: u64 = 8192;
/// The process ends inside a call: a write reaches the file up to its last sector boundary.
const KILLED: Verdict = Verdict::CrashInside { thousandths: 999 };

const fn mixed(percent: u8) -> Survivors {
    Survivors::Mixed { percent }
}

/// The records that an owner remembers, to compare with the records of the log.
#[derive(Default)]
struct Owner {
    /// Appended records that no checkpoint covers.
    records: Found,
    /// Number of synced records.
    synced: usize,
    /// The end of the last checkpoint.
    kept: Position,
    /// A position beyond every position that the log returned.
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

    /// The store has durably applied all records before `position`.
    fn checkpoint(&mut self, log: &IntentLog, position: Position) {
        let covered = self.records.partition_point(|(at, _)| *at < position);
        self.records.drain(..covered);
        self.synced = self.synced.saturating_sub(covered);
        self.kept = self.kept.max(position);
        log.cut(position);
    }

    /// Compares the records that a log holds after a crash with the records that it must hold.
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

    /// Continues with the records that the log holds after a crash. All of them are durable.
    fn resume(&mut self, found: Found) {
        self.synced = found.len();
        self.records = found;
        self.doubtful = None;
    }

    /// Options for opening after a crash. The log is `whole` if the process alone crashed.
    fn options(&self, whole: bool) -> lockstep_intentlog::LogOptions {
        lockstep_intentlog::LogOptions {
            keep_from: Some(self.kept),
            is_whole: whole,
            ..options(SEGMENT_BYTES)
        }
    }
}

/// Crashes the process alone, or the machine. A crashed machine keeps a share of the unsynced changes.
fn crash(disk: &Disk, random: &mut Random) -> (Disk, bool) {
    if random.below(5) == 0 {
        return (disk.fork(), true);
    }
    let shares = [Survivors::Nothing, mixed(10), mixed(50), mixed(90)];
    let survivors = *random.pick(&shares);
    (disk.after_power_loss(survivors, random.any()), false)
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// Opens after a crash. The first attempt may crash too.
fn reopen(
    owner: &mut Owner,
    mut disk: Disk,
    mut whole: bool,
    random: &mut Random,
) -> (Disk, IntentLog) {
    if random.percent(50) {
        disk.set_verdict(1 + random.below(6), KILLED);
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
    let cold = disk.after_power_loss(Survivors::Nothing, 0);
    let cold = read(&cold, &owner.options(false)).unwrap();
    assert_eq!(cold, found, "replayed records are durable");
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
        let mut random = Random::new(seed);
        let mut owner = Owner::default();
        let (mut disk, mut log) = new_log(SEGMENT_BYTES);
        for _ in 0..12 {
            disk.set_verdict(1 + random.below(120), KILLED);
            while random_step(&mut owner, &log, &mut random).is_ok() {}
            let (after, whole) = crash(&disk, &mut random);
            (disk, log) = reopen(&mut owner, after, whole, &mut random);
        }
    }
}

/// A fixed sequence of operations. It fills several segments, and sometimes syncs or cuts.
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
    let (disk, log) = new_log(SEGMENT_BYTES);
    let before = disk.calls();
    script(&mut Owner::default(), &log).unwrap();
    disk.calls() - before
}

#[test]
fn a_crash_at_every_call_keeps_the_promises() {
    let calls = calls_of_script();
    assert!(calls > 150);
    for stop in 1..=calls {
        let (disk, log) = new_log(SEGMENT_BYTES);
        let mut owner = Owner::default();
        disk.set_verdict(stop, KILLED);
        script(&mut owner, &log).unwrap_err();
        let killed = read(&disk.fork(), &owner.options(true)).unwrap();
        owner.check(&killed, true);
        for (seed, percent) in (0..).zip([0, 20, 50, 50, 50, 80, 95]) {
            let after = disk.after_power_loss(mixed(percent), stop * 100 + seed);
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
            let disk = Disk::default();
            disk.set_verdict(stop, KILLED);
            let made = create(&disk, SEGMENT_BYTES).is_ok();
            let after = disk.after_power_loss(mixed(50), seed);
            match open(&after, &options(SEGMENT_BYTES)) {
                Ok((_, found)) => assert!(found.is_empty()),
                Err(LogError::Missing { .. }) => {
                    assert!(!made);
                    create(&after, SEGMENT_BYTES).unwrap();
                }
                Err(error) => panic!("after call {stop}: {error}"),
            }
        }
    }
}
