//! The section `[datastore.snapshots]`: how many snapshots the schedule of a datastore keeps.

use lockstep_driver::config::{SnapshotSchedule, settings};

use super::problem::{Problems, Rejection};
use super::section::Section;
use super::value;

/// The key of the section, which may also be an inline table.
const KEY: &str = "snapshots";

/// Reads the schedule of a datastore. Without the section, and with a mistake in it, the schedule is off.
pub(super) fn read(problems: &mut Problems<'_>, datastore: &Section<'_>) -> SnapshotSchedule {
    let Some(section) = datastore.table(problems, KEY, "snapshots = { hourly = 24, daily = 30 }")
    else {
        return SnapshotSchedule::default();
    };
    let above = ("[[datastore]]", &*settings::keys(settings::DATASTORE));
    section.refuse_unknown_below(problems, &settings::keys(settings::SNAPSHOTS), above);
    let mut schedule = SnapshotSchedule::default();
    for setting in settings::SNAPSHOTS {
        let count = section.optional(problems, setting.key, 0, |value| {
            value::number(value, SnapshotSchedule::bounds())
        });
        if let Some(place) = schedule.count_mut(setting.key) {
            *place = u16::try_from(count).unwrap_or(u16::MAX);
        }
    }
    let (sum, most) = (schedule.sum(), SnapshotSchedule::SUM_MAX);
    if sum > most {
        let rejection = Rejection::new(
            format!("all counts together are {sum}, more than {most}"),
            "lower some of them: the rest is for snapshots that you make",
        );
        datastore.refuse_foreign(problems, KEY, rejection);
        return SnapshotSchedule::default();
    }
    schedule
}
