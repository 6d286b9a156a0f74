//! The lines that a passing test prints. The test harness captures what a test prints as usual, and
//! shows it only for a failing test.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::time::Duration;

/// Prints a line past the test harness: the work of `test`, and its duration.
pub fn print_result(test: &str, result: impl Display, took: Duration) {
    // An error means that no reader is left, and does not concern the test.
    let _printed = writeln!(io::stdout().lock(), "{test}: {result}, in {took:.1?}");
}
