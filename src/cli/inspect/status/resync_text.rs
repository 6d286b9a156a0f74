//! The progress of a resync, for people: as a row, and as a bar.
//!
//! The numbers may come from the other node. None of them is trusted to fit another.

use std::time::Duration;

use lockstep_driver::report::{DatastoreStatus, ResyncPhase, ResyncStatus, ResyncWait};
use lockstepfs::config::Choice;

use crate::cli::terminal::{bytes, count, duration};

/// Cells of a bar.
const CELLS: u64 = 24;

/// The row of a resync in `lockstep status`.
pub(in crate::cli) fn row(resync: &ResyncStatus) -> String {
    let done = match resync.phase {
        ResyncPhase::Recovery => "the nodes settle the operations that were in flight".to_owned(),
        ResyncPhase::Namespace => format!("{} of records sent", bytes(resync.bytes_sent)),
        ResyncPhase::Content => content(resync),
        ResyncPhase::Proving => proving(resync),
        ResyncPhase::Finish => {
            let sent = bytes(resync.bytes_sent);
            format!("all content is equal, {sent} were sent; both nodes make it durable")
        }
    };
    let mut parts = vec![format!("{}: {done}", resync.phase.word())];
    parts.extend(speed(resync));
    parts.extend(left(resync));
    parts.extend(resync.waits_for.map(|wait| waiting(wait).to_owned()));
    parts.join(", ")
}

/// The limits of a resync, if there are some.
pub(in crate::cli) fn limits(store: &DatastoreStatus) -> Option<String> {
    let settings = &store.settings;
    let rate = settings.resync_bytes_per_second;
    let rate = rate.map(|rate| format!("reads at most {} in a second", bytes(rate)));
    let pause = settings.resync_pause_above_ms.map(|limit| {
        let limit = duration(Duration::from_millis(limit));
        format!("pauses while operations of programs take longer than {limit}")
    });
    let limits: Vec<String> = rate.into_iter().chain(pause).collect();
    (!limits.is_empty()).then(|| format!("a resync from this node {}", limits.join(", and ")))
}

/// The line of a datastore with a resync in `lockstep wait`, on a terminal.
pub(in crate::cli) fn bar(name: &str, resync: &ResyncStatus) -> String {
    let phase = resync.phase.word();
    let mut parts = vec![format!("{name}: {phase}")];
    match (resync.phase, share(resync)) {
        (ResyncPhase::Recovery, _) => {}
        (ResyncPhase::Namespace, _) => parts.push(format!("{} sent", bytes(resync.bytes_sent))),
        (ResyncPhase::Content, None) => parts.push("counting files".to_owned()),
        (ResyncPhase::Proving, percent) => {
            parts.extend(percent.map(cells));
            parts.push(proving(resync));
        }
        (ResyncPhase::Content | ResyncPhase::Finish, percent) => {
            parts.extend(percent.map(cells));
            parts.extend(
                resync
                    .bytes_total
                    .map(|total| format!("{} of {}", bytes(resync.bytes_done), bytes(total))),
            );
        }
    }
    parts.extend(speed(resync));
    parts.extend(left(resync));
    parts.extend(resync.waits_for.map(|wait| waiting(wait).to_owned()));
    parts.join("  ")
}

fn content(resync: &ResyncStatus) -> String {
    let (Some(files), Some(total)) = (resync.files_total, resync.bytes_total) else {
        return "the files are being counted".to_owned();
    };
    let of = match resync.whole {
        Some(true) => "everything, ",
        Some(false) => "what has changed, ",
        None => "",
    };
    let percent = share(resync).map(|percent| format!(" ({percent} %)"));
    format!(
        "{of}{} of {} files done, {} of {} compared{}, {} sent",
        count(resync.files_done),
        count(files),
        bytes(resync.bytes_done),
        bytes(total),
        percent.unwrap_or_default(),
        bytes(resync.bytes_sent)
    )
}

fn proving(resync: &ResyncStatus) -> String {
    format!(
        "{} of {} files and directories compared",
        count(resync.files_done),
        count(resync.files_total.unwrap_or(0))
    )
}

/// The part of the work that is done, in percent: of the bytes, or of the files if these have no bytes.
fn share(resync: &ResyncStatus) -> Option<u64> {
    let bytes = resync.bytes_total.filter(|&total| total > 0);
    let bytes = bytes.map(|total| (resync.bytes_done, total));
    let files = resync.files_total.map(|total| (resync.files_done, total));
    let (done, total) = bytes.or(files)?;
    let percent = (u128::from(done) * 100).checked_div(u128::from(total));
    Some(percent.map_or(100, |percent| {
        u64::try_from(percent.min(100)).unwrap_or(100)
    }))
}

/// A bar with its number.
fn cells(percent: u64) -> String {
    let full = usize::try_from(percent * CELLS / 100).unwrap_or(0);
    let empty = usize::try_from(CELLS).unwrap_or(0).saturating_sub(full);
    format!("[{}{}] {percent:>3} %", "=".repeat(full), " ".repeat(empty))
}

fn speed(resync: &ResyncStatus) -> Option<String> {
    let speed = resync.bytes_per_second?;
    Some(format!("{}/s", bytes(speed)))
}

/// The time left, in a phase whose end can be known.
fn left(resync: &ResyncStatus) -> Option<String> {
    let has_end = match resync.phase {
        ResyncPhase::Content => resync.bytes_total.is_some(),
        ResyncPhase::Proving => true,
        ResyncPhase::Recovery | ResyncPhase::Namespace | ResyncPhase::Finish => false,
    };
    if !has_end {
        return None;
    }
    Some(resync.left_ms.map_or_else(
        || "time left unknown".to_owned(),
        |left| match left.div_ceil(1000) {
            seconds @ 0..60 => format!("{seconds} s left"),
            seconds => format!("{} left", duration(Duration::from_secs(seconds))),
        },
    ))
}

const fn waiting(wait: ResyncWait) -> &'static str {
    match wait {
        ResyncWait::Limit => "held back by resync_bytes_per_second",
        ResyncWait::Clients => "pauses for programs (resync_pause_above_ms)",
    }
}

#[cfg(test)]
pub(in crate::cli) mod tests {
    use super::*;

    /// A quarter of a resync of content.
    pub(in crate::cli) fn quarter() -> ResyncStatus {
        ResyncStatus {
            phase: ResyncPhase::Content,
            whole: Some(true),
            files_total: Some(3000),
            files_done: 12,
            bytes_total: Some(4 << 30),
            bytes_done: 1 << 30,
            bytes_sent: 5 << 20,
            bytes_per_second: Some(120 << 20),
            left_ms: Some(25_600),
            waits_for: None,
        }
    }

    fn unknown(phase: ResyncPhase) -> ResyncStatus {
        ResyncStatus {
            phase,
            whole: None,
            files_total: None,
            files_done: 0,
            bytes_total: None,
            bytes_done: 0,
            bytes_sent: 0,
            bytes_per_second: None,
            left_ms: None,
            waits_for: None,
        }
    }

    #[test]
    fn a_row_says_what_is_known() {
        assert_eq!(
            row(&quarter()),
            "content: everything, 12 of 3,000 files done, 1.00 GiB of 4.00 GiB compared (25 %), 5.00 MiB sent, 120 MiB/s, 26 s left"
        );
        let waits = ResyncStatus {
            whole: Some(false),
            left_ms: None,
            waits_for: Some(ResyncWait::Clients),
            ..quarter()
        };
        let text = row(&waits);
        assert!(
            text.starts_with("content: what has changed, 12 of"),
            "{text}"
        );
        let end = ", time left unknown, pauses for programs (resync_pause_above_ms)";
        assert!(text.ends_with(end), "{text}");
        assert_eq!(
            row(&unknown(ResyncPhase::Content)),
            "content: the files are being counted"
        );
        let names = ResyncStatus {
            bytes_sent: 3 << 20,
            bytes_per_second: Some(1 << 20),
            ..unknown(ResyncPhase::Namespace)
        };
        assert_eq!(
            row(&names),
            "namespace: 3.00 MiB of records sent, 1.00 MiB/s"
        );
        for phase in [ResyncPhase::Recovery, ResyncPhase::Finish] {
            let text = row(&unknown(phase));
            assert!(!text.contains("unknown") && !text.contains("/s"), "{text}");
        }
    }

    #[test]
    fn a_bar_is_full_at_the_end_only() {
        assert_eq!(
            bar("data", &quarter()),
            "data: content  [======                  ]  25 %  1.00 GiB of 4.00 GiB  120 MiB/s  26 s left"
        );
        assert_eq!(cells(99), "[======================= ]  99 %");
        assert_eq!(cells(100), "[========================] 100 %");
        let counting = bar("data", &unknown(ResyncPhase::Content));
        assert_eq!(counting, "data: content  counting files");
        assert_eq!(
            bar("data", &unknown(ResyncPhase::Recovery)),
            "data: recovery"
        );
    }

    #[test]
    fn numbers_that_do_not_fit_each_other_do_no_harm() {
        let wild = ResyncStatus {
            files_total: Some(0),
            bytes_total: Some(1),
            bytes_done: u64::MAX,
            left_ms: Some(u64::MAX),
            ..quarter()
        };
        assert_eq!(share(&wild), Some(100));
        assert!(bar("data", &wild).contains("100 %"));
        let empty = ResyncStatus {
            files_total: Some(0),
            bytes_total: Some(0),
            ..quarter()
        };
        assert_eq!(share(&empty), Some(100));
        let files = ResyncStatus {
            bytes_total: Some(0),
            ..quarter()
        };
        assert_eq!(share(&files), Some(0));
    }
}
