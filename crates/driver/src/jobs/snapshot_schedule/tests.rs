//! The schedule over months of a clock that runs, stands and jumps.

use lockstep_types::Osn;
use proptest::prelude::*;

use super::*;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// Monday, 2026-11-30, 00:00:00.
const MONDAY: i64 = 1_795_996_800;

fn id(sequence: u64) -> SnapshotId {
    SnapshotId::of_operation(Osn {
        sequence,
        ..Osn::ZERO
    })
}

fn schedule(hourly: u16, daily: u16, weekly: u16, monthly: u16) -> SnapshotSchedule {
    SnapshotSchedule {
        hourly,
        daily,
        weekly,
        monthly,
    }
}

/// A datastore whose schedule is looked at now and then.
struct World {
    schedule: SnapshotSchedule,
    list: Vec<ScheduledSnapshot>,
    made: Vec<ScheduledSnapshot>,
    next: u64,
}

impl World {
    const fn new(schedule: SnapshotSchedule) -> Self {
        Self {
            schedule,
            list: Vec::new(),
            made: Vec::new(),
            next: 1,
        }
    }

    fn look(&mut self, now: i64, is_held: bool) {
        let period = present_period(self.schedule, now).unwrap();
        if !has_one(&self.list, period) {
            let secs = now;
            let new = ScheduledSnapshot {
                id: id(self.next),
                secs,
                is_held,
            };
            self.next += 1;
            self.list.push(new);
            self.made.push(new);
        }
        let outdated = outdated(self.schedule, now, &self.list);
        self.list.retain(|it| !outdated.contains(&it.id));
    }

    /// The moments of the snapshots that are there.
    fn moments(&self) -> Vec<i64> {
        let mut moments: Vec<i64> = self.list.iter().map(|it| it.secs).collect();
        moments.sort_unstable();
        moments
    }
}

#[test]
fn names_are_those_of_samba() {
    let name = name_of(MONDAY + 13 * HOUR + 61).unwrap();
    assert_eq!(name.as_str(), "@GMT-2026.11.30-13.01.01");
    assert_eq!(moment_of(name.as_str()), Some(MONDAY + 13 * HOUR + 61));
    for other in [
        "mine",
        "@GMT-2026.11.30",
        "@GMT-2026.13.30-13.01.01",
        "@GMT-2026.11.31-13.01.01",
        "@GMT-2026.11.30-24.01.01",
        "@GMT-2026.11.30-13.01.01.02",
    ] {
        assert_eq!(moment_of(other), None, "{other}");
    }
}

#[test]
fn the_first_of_each_period_is_kept_and_the_newest_periods_count() {
    let mut world = World::new(schedule(3, 2, 2, 2));
    // From Monday on for 40 days, every ten minutes.
    for minute in 0..40 * 24 * 6 {
        world.look(MONDAY + minute * 600, false);
    }
    let last_hour = MONDAY + 40 * DAY - HOUR;
    let expected = vec![
        MONDAY,            // the first of November
        MONDAY + DAY,      // December
        MONDAY + 28 * DAY, // a Monday
        MONDAY + 32 * DAY, // January
        MONDAY + 35 * DAY, // a Monday
        MONDAY + 38 * DAY, // a day
        MONDAY + 39 * DAY, // a day
        last_hour - 2 * HOUR,
        last_hour - HOUR,
        last_hour,
    ];
    // The newest two months are December and January.
    assert_eq!(world.moments(), expected[1..]);
    assert_eq!(world.made.len(), 40 * 24);
}

#[test]
fn a_schedule_that_is_off_does_nothing() {
    let off = SnapshotSchedule::default();
    assert_eq!(present_period(off, MONDAY), None);
    let all = [0, 1].map(|sequence| ScheduledSnapshot {
        id: id(sequence),
        secs: MONDAY,
        is_held: false,
    });
    assert_eq!(outdated(off, MONDAY, &all), []);
}

#[test]
fn a_missed_time_brings_one_snapshot_and_not_many() {
    let mut world = World::new(schedule(24, 0, 0, 0));
    world.look(MONDAY, false);
    for _ in 0..10 {
        world.look(MONDAY + 9 * HOUR + 100, false);
    }
    assert_eq!(world.moments(), [MONDAY, MONDAY + 9 * HOUR + 100]);
}

/// Days in the wrong year push out none of those from before, and those after count again.
#[test]
fn a_clock_that_was_wrong_for_days_loses_no_snapshot_of_the_right_one() {
    let mut world = World::new(schedule(5, 0, 0, 0));
    for hour in 0..5 {
        world.look(MONDAY + hour * HOUR, false);
    }
    for hour in 0..3 {
        world.look(MONDAY + 365 * DAY + hour * HOUR, false);
    }
    let right = world.moments();
    for hour in 5..8 {
        world.look(MONDAY + hour * HOUR, false);
    }
    let kept = world.moments();
    assert_eq!(right[..2], [3, 4].map(|hour| MONDAY + hour * HOUR));
    for hour in 3..8 {
        assert!(kept.contains(&(MONDAY + hour * HOUR)), "{hour}");
    }
    assert_eq!(kept.len(), 8, "three of the wrong year besides");
}

fn any_schedule() -> impl Strategy<Value = SnapshotSchedule> {
    let counts = (0..6_u16, 0..5_u16, 0..4_u16, 0..4_u16);
    let all = counts
        .prop_map(|(hourly, daily, weekly, monthly)| schedule(hourly, daily, weekly, monthly));
    all.prop_filter("a schedule that is on", |it| !it.is_off())
}

/// Moments at which the schedule is looked at, as steps from one to the next. Most go forward, some jump.
fn steps() -> impl Strategy<Value = Vec<i64>> {
    let step = prop_oneof![
        6 => 1..2 * HOUR,
        3 => 1..3 * DAY,
        1 => -40 * DAY..60 * DAY,
        1 => -2 * HOUR..0,
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However the clock jumps: one snapshot a period, few in all, and none of them goes before newer ones have its place.
    #[test]
    fn jumps_make_no_mass_and_delete_none_wrongly(
        schedule in any_schedule(),
        steps in steps(),
        held in any::<u64>(),
    ) {
        let mut world = World::new(schedule);
        let mut now = MONDAY;
        for (number, step) in steps.iter().enumerate() {
            now += step;
            let before = world.list.clone();
            world.look(now, held >> (number % 64) & 1 == 1 && number % 7 == 0);
            let looked_at: Vec<_> = before.iter().chain(world.list.last()).copied().collect();
            let gone = before.iter().filter(|it| !world.list.contains(it));
            for gone in gone {
                prop_assert!(!gone.is_held);
                for (class, count) in classes(schedule) {
                    let period = class.number(gone.secs);
                    let is_future = gone.secs > now;
                    let beside = looked_at.iter().filter(|it| (it.secs > now) == is_future);
                    let beside: Vec<_> = beside.collect();
                    let is_first = beside.iter().all(|it| {
                        class.number(it.secs) != period || (it.secs, it.id) >= (gone.secs, gone.id)
                    });
                    let newer = beside.iter().map(|it| class.number(it.secs));
                    let newer: BTreeSet<i64> = newer.filter(|it| *it > period).collect();
                    prop_assert!(!is_first || newer.len() >= count);
                }
            }
            let free = world.list.iter().filter(|it| !it.is_held).count();
            prop_assert!(free <= 2 * schedule.sum());
        }
        let finest = present_period(schedule, now).unwrap().class;
        let periods: BTreeSet<i64> = world.list.iter().map(|it| finest.number(it.secs)).collect();
        prop_assert_eq!(periods.len(), world.list.len(), "one in a period");
        prop_assert!(world.made.len() <= steps.len());
    }

    /// A clock that shows another moment, earlier or later, deletes nothing that the first one has kept.
    #[test]
    fn a_look_at_another_time_deletes_nothing(
        schedule in any_schedule(),
        steps in prop::collection::vec(1..3 * DAY, 1..60),
        jump in -60 * DAY..60 * DAY,
    ) {
        let mut world = World::new(schedule);
        let mut now = MONDAY;
        for step in steps {
            now += step;
            world.look(now, false);
        }
        prop_assert_eq!(outdated(schedule, now + jump, &world.list), []);
    }

    /// The order of the list does not matter: both nodes decide alike.
    #[test]
    fn the_decision_depends_on_the_list_alone(
        schedule in any_schedule(),
        moments in prop::collection::vec(-40 * DAY..40 * DAY, 0..60),
        now in -40 * DAY..40 * DAY,
    ) {
        let numbered = moments.iter().zip(1..);
        let mut all: Vec<_> = numbered.map(|(secs, number)| ScheduledSnapshot {
            id: id(number),
            secs: MONDAY + secs,
            is_held: false,
        }).collect();
        let first = outdated(schedule, MONDAY + now, &all);
        all.reverse();
        prop_assert_eq!(outdated(schedule, MONDAY + now, &all), first.clone());
        // A second look has nothing left to do.
        all.retain(|it| !first.contains(&it.id));
        prop_assert_eq!(outdated(schedule, MONDAY + now, &all), []);
    }
}
