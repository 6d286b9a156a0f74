//! What tests tell people although they pass: of what is printed as usual, the harness shows what fails.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::time::Duration;

/// Writes a line past the harness: how much `test` has run, and how long it took.
pub fn tell(test: &str, what: impl Display, took: Duration) {
    // Who does not listen misses nothing that counts.
    let _told = writeln!(io::stdout().lock(), "{test}: {what}, in {took:.1?}");
}
