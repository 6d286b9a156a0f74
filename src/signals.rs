//! The signals that end a process in order.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals at which a process stops in order. SIGHUP, which a terminal sends when it is closed, is one
/// of them unless whoever started the process had it ignored (`nohup`).
pub fn stop_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut signals = vec![SIGTERM, SIGINT];
    if !ignores(&status, SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

/// Whether `/proc/PID/status` says that a signal is ignored.
fn ignores(status: &str, signal: i32) -> bool {
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_found_in_the_mask() {
        let status = "Name:\tlockstep\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SIGHUP));
        assert!(!ignores(status, SIGTERM));
        assert!(!ignores("", SIGHUP));
    }
}
