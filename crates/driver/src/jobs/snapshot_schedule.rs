//! The decisions of the schedule: whether a snapshot is to be made now, and which ones have had their time.
//!
//! Nothing here asks a clock, a disk or a node. The list of snapshots says all about the past, and both nodes have the same list: so a node that
//! takes over goes on where the other one was.
//!
//! - *Making.* The finest class of the schedule has a *period*: an hour, a day, a week or a month, in UTC. A snapshot is due while the present
//!   period has none. A period that has passed without one gets none later.
//! - *Keeping.* Of each class, the schedule keeps the first snapshot of each period, for the newest periods that have one, as many as it says.
//!   So the number of snapshots counts and not their age: a clock that jumps forward makes no snapshot old.
//! - *A clock that jumps back.* Snapshots of the future are counted apart from the others, by the same rule. So they push out none of those that
//!   the right clock has named.
//!
//! The moment of a scheduled snapshot is the one in its name, in whole seconds since 1970.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_types::{SnapshotId, SnapshotName};
use time::{Date, Month, OffsetDateTime, Time};

use crate::config::SnapshotSchedule;

/// A scheduled snapshot, for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScheduledSnapshot {
    /// Which.
    pub id: SnapshotId,
    /// Its moment, in seconds since 1970.
    pub secs: i64,
    /// Whether a hold keeps it.
    pub is_held: bool,
}

/// A length of time that the schedule counts, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Hour,
    Day,
    Week,
    Month,
}

/// The length of time of a class that has a moment in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    class: Class,
    /// Counts the lengths of the class.
    number: i64,
}

impl Class {
    /// The number of the period with a moment.
    fn number(self, secs: i64) -> i64 {
        const DAY: i64 = 86_400;
        match self {
            Self::Hour => secs.div_euclid(3600),
            Self::Day => secs.div_euclid(DAY),
            // The epoch began on a Thursday.
            Self::Week => (secs.div_euclid(DAY) + 3).div_euclid(7),
            Self::Month => OffsetDateTime::from_unix_timestamp(secs).map_or(0, |moment| {
                i64::from(moment.year()) * 12 + i64::from(u8::from(moment.month()))
            }),
        }
    }
}

/// The classes of a schedule with their counts, the finest first.
fn classes(schedule: SnapshotSchedule) -> impl Iterator<Item = (Class, usize)> {
    let all = [
        (Class::Hour, schedule.hourly),
        (Class::Day, schedule.daily),
        (Class::Week, schedule.weekly),
        (Class::Month, schedule.monthly),
    ];
    let counted = all.into_iter().filter(|(_, count)| *count > 0);
    counted.map(|(class, count)| (class, usize::from(count)))
}

/// The present period of the finest class; `None` if the schedule is off.
pub(super) fn present_period(schedule: SnapshotSchedule, now: i64) -> Option<Period> {
    let (class, _) = classes(schedule).next()?;
    let number = class.number(now);
    Some(Period { class, number })
}

/// Whether one of the snapshots lies in a period.
pub(super) fn has_one(all: &[ScheduledSnapshot], period: Period) -> bool {
    let numbers = all.iter().map(|it| period.class.number(it.secs));
    numbers.into_iter().any(|number| number == period.number)
}

/// The snapshots that have had their time, the oldest first.
pub(super) fn outdated(
    schedule: SnapshotSchedule,
    now: i64,
    all: &[ScheduledSnapshot],
) -> Vec<SnapshotId> {
    if schedule.is_off() {
        return Vec::new();
    }
    let mut ordered = all.to_vec();
    ordered.sort_by_key(|it| (it.secs, it.id));
    let (past, future): (Vec<_>, Vec<_>) = ordered.iter().partition(|it| it.secs <= now);
    let kept = [kept(schedule, &past), kept(schedule, &future)].concat();
    let kept: BTreeSet<SnapshotId> = kept.into_iter().collect();
    let has_passed = |it: &&ScheduledSnapshot| !it.is_held && !kept.contains(&it.id);
    ordered.iter().filter(has_passed).map(|it| it.id).collect()
}

/// Those of some snapshots, in their order, that the schedule keeps.
fn kept(schedule: SnapshotSchedule, ordered: &[ScheduledSnapshot]) -> Vec<SnapshotId> {
    let of_class = |(class, count): (Class, usize)| {
        let mut firsts = BTreeMap::new();
        for it in ordered {
            firsts.entry(class.number(it.secs)).or_insert(it.id);
        }
        firsts.into_values().rev().take(count)
    };
    classes(schedule).flat_map(of_class).collect()
}

/// The name of a snapshot of a moment, in the form that Samba's `shadow_copy2` expects. `None` for a moment beyond the calendar.
pub(super) fn name_of(secs: i64) -> Option<SnapshotName> {
    let moment = OffsetDateTime::from_unix_timestamp(secs).ok()?;
    let (year, month, day) = (moment.year(), u8::from(moment.month()), moment.day());
    let (hour, minute, second) = moment.to_hms();
    let name = format!("@GMT-{year:04}.{month:02}.{day:02}-{hour:02}.{minute:02}.{second:02}");
    SnapshotName::new(name).ok()
}

/// The moment in a name of [`name_of`].
pub(super) fn moment_of(name: &str) -> Option<i64> {
    let (day, time) = name.strip_prefix("@GMT-")?.split_once('-')?;
    let [year, month, day] = numbers(day)?;
    let [hour, minute, second] = numbers(time)?;
    let small = |number: u16| u8::try_from(number).ok();
    let month = Month::try_from(small(month)?).ok()?;
    let date = Date::from_calendar_date(i32::from(year), month, small(day)?).ok()?;
    let time = Time::from_hms(small(hour)?, small(minute)?, small(second)?).ok()?;
    Some(date.with_time(time).assume_utc().unix_timestamp())
}

/// Three numbers with points between them.
fn numbers(text: &str) -> Option<[u16; 3]> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests;
