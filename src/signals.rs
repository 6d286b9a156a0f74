//! The signals that request a clean shutdown of a process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Returns the signals that request a clean shutdown. A closed terminal sends SIGHUP: it is one of these signals
/// unless the parent of the process has set it to be ignored (`nohup`).
pub fn stop_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut signals = vec![SIGTERM, SIGINT];
    if !ignores(&status, SIGHUP) {
        signals.push(SIGHUP);
    }
    signals
}

/// Ignores the signals of [`stop_signals`] in a helper process. A signal to the whole unit or terminal is for the node, which
/// needs its helpers until it has unmounted.
///
/// # Errors
/// If a signal cannot be handled.
pub fn leave_to_the_node() -> io::Result<()> {
    for signal in stop_signals() {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

/// Whether `/proc/PID/status` shows a signal as ignored.
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
