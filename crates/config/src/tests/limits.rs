//! Limits that have bounds, or are switched off.

use std::num::NonZeroU64;

use lockstep_driver::config::{ResyncLimits, SnapshotSchedule};

use lockstep_types::settings::CheckReads;

use super::*;

#[test]
fn the_wait_for_a_steady_link_has_a_bound_or_is_off() {
    for (written, expected) in [("0", Duration::ZERO), ("2500", Duration::from_millis(2500))] {
        let line = format!("flap_wait_max_ms = {written}");
        let config = read(&good().replace("pause_limit_ms = 10000", &line)).unwrap();
        let wait = config.datastore("alpha").unwrap().policies.flap_wait_max;
        assert_eq!(wait.get(), expected);
    }
}

#[test]
fn a_resync_has_limits_or_none() {
    let limits = |lines: &str| {
        let config = read(&good().replace("pause_limit_ms = 10000", lines)).unwrap();
        config.datastore("alpha").unwrap().policies.resync
    };
    let off = "resync_bytes_per_second = 0\nresync_pause_above_ms = 0";
    assert_eq!(limits(off), ResyncLimits::default());
    let on = limits("resync_bytes_per_second = 50_000_000\nresync_pause_above_ms = 20");
    assert_eq!(on.bytes_per_second.map(NonZeroU64::get), Some(50_000_000));
    assert_eq!(on.pause_above, Some(Duration::from_millis(20)));
}

#[test]
fn the_watch_over_the_disk_has_a_limit_or_is_off() {
    for (written, expected) in [("0", None), ("1000", Some(Duration::from_secs(1)))] {
        let line = format!("disk_stall_limit_ms = {written}");
        let config = read(&good().replace("pause_limit_ms = 10000", &line)).unwrap();
        let limit = config.datastore("alpha").unwrap().policies.disk_stall_limit;
        assert_eq!(limit.get(), expected);
    }
}

#[test]
fn a_schedule_of_snapshots_has_counts_that_fit() {
    let schedule = |lines: &str| {
        let config = read(&good().replace("pause_limit_ms = 10000", lines))?;
        Ok::<_, ConfigError>(config.datastore("alpha").unwrap().policies.snapshots)
    };
    let expected = SnapshotSchedule {
        hourly: 24,
        daily: 30,
        ..SnapshotSchedule::default()
    };
    assert_eq!(
        schedule("snapshots = { hourly = 24, daily = 30 }").unwrap(),
        expected
    );
    assert_eq!(
        schedule("[datastore.snapshots]\nhourly = 24\ndaily = 30\nweekly = 0").unwrap(),
        expected
    );
    assert!(schedule("").unwrap().is_off());
    for (line, key, cause, cure) in [
        (
            "snapshots = 24",
            "snapshots",
            "must be a table",
            "{ hourly = 24",
        ),
        (
            "snapshots = { hourly = 1025 }",
            "hourly",
            "1025 is out of bounds",
            "1 to 1024",
        ),
        (
            "snapshots = { hourly = \"24\" }",
            "hourly",
            "must be a whole number",
            "without quotes",
        ),
        (
            "snapshots = { hourly = 1024, daily = 1024, weekly = 1 }",
            "snapshots",
            "2049, more than 2048",
            "lower some",
        ),
        (
            "snapshots = { houry = 24 }",
            "houry",
            "no such key",
            "hourly",
        ),
    ] {
        let problem = only_problem("pause_limit_ms = 10000", line);
        assert_eq!(problem.key, key);
        let (found, rest) = (problem.cause.contains(cause), problem.cure.contains(cure));
        assert!(found && rest, "{problem}");
    }
}

#[test]
fn the_commands_around_snapshots_are_lists_with_a_whole_path() {
    let hooks = |line: &str| {
        let config = read(&good().replace("pause_limit_ms = 10000", line)).unwrap();
        let policies = config.datastore("alpha").unwrap().policies.clone();
        policies.snapshot_hooks
    };
    let read =
        hooks("snapshot_hooks = { before = [\"/bin/freeze\", \"-x\", \"\"], limit_ms = 500 }");
    assert_eq!(read.before, ["/bin/freeze", "-x", ""]);
    assert!(read.after.is_empty());
    assert_eq!(read.limit, Duration::from_millis(500));
    let read = hooks("[datastore.snapshot_hooks]\nafter = [\"/bin/thaw\"]");
    assert_eq!((read.before.len(), read.after.len()), (0, 1));
    assert_eq!(read.limit, Duration::from_secs(30));
    assert!(hooks("").is_off());
    for (line, key, cause, cure) in [
        (
            "snapshot_hooks = []",
            "snapshot_hooks",
            "must be a table",
            "{ before =",
        ),
        (
            "snapshot_hooks = { before = \"/bin/freeze now\" }",
            "before",
            "a list",
            "[\"/etc/lockstep/freeze\", \"ARGUMENT\"]",
        ),
        (
            "snapshot_hooks = { after = [] }",
            "after",
            "no program",
            "remove the key",
        ),
        (
            "snapshot_hooks = { after = [1] }",
            "after",
            "an integer",
            "double quotes",
        ),
        (
            "snapshot_hooks = { before = [\"freeze\"] }",
            "before",
            "\"freeze\" is not an absolute path",
            "beginning with `/`",
        ),
        (
            "snapshot_hooks = { before = [\"/bin/freeze\", \"a\\u0000\"] }",
            "before",
            "NUL",
            "without",
        ),
        (
            "snapshot_hooks = { after = [\"/thaw\"], limit_ms = 99 }",
            "limit_ms",
            "out of bounds",
            "100 to 600000",
        ),
        (
            "snapshot_hooks = { befor = [\"/a\"] }",
            "befor",
            "no such key",
            "before",
        ),
    ] {
        let problem = only_problem("pause_limit_ms = 10000", line);
        assert_eq!(problem.key, key);
        let (found, rest) = (problem.cause.contains(cause), problem.cure.contains(cure));
        assert!(found && rest, "{problem}");
    }
}

#[test]
fn check_reads_is_a_word_or_a_truth_value() {
    for (value, expected) in [
        ("true", CheckReads::On),
        ("false", CheckReads::Off),
        ("\"on\"", CheckReads::On),
        ("\"off\"", CheckReads::Off),
    ] {
        let line = format!("check_reads = {value}");
        let config = read(&good().replace("pause_limit_ms = 10000", &line)).unwrap();
        let policies = &config.datastore("alpha").unwrap().policies;
        assert_eq!(policies.check_reads, expected);
    }
}
