//! The output of the demo: plain lines, with colour only on a terminal, and the format of numbers in them.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Prints the lines and numbers the steps.
#[derive(Debug)]
pub(super) struct Show {
    colour: bool,
    steps: Cell<u32>,
}

impl Show {
    pub(super) fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none();
        Self {
            colour: wanted && io::stdout().is_terminal(),
            steps: Cell::new(0),
        }
    }

    pub(super) fn title(&self, text: &str) {
        line(&format!("\n{}\n", self.paint("1", text)));
    }

    /// Begins the next step of the story.
    pub(super) fn step(&self, text: &str) {
        self.steps.set(self.steps.get() + 1);
        let step = format!("{}  {text}", self.steps.get());
        line(&format!("\n{}", self.paint("1", &step)));
    }

    pub(super) fn note(&self, text: &str) {
        line(&format!("   {}", self.paint("0", text)));
    }

    /// A shell command with the same effect.
    pub(super) fn command(&self, text: &str) {
        line(&format!("   {}", self.paint("2", &format!("$ {text}"))));
    }

    pub(super) fn good(&self, text: &str) {
        line(&format!("   {} {text}", self.paint("32", "✓")));
    }

    pub(super) fn bad(&self, text: &str) {
        let verdict = self.paint("1;31", "This is not as it should be.");
        line(&format!("   {} {text}\n\n{verdict}", self.paint("31", "✗")));
    }

    pub(super) fn end(&self, text: &str) {
        line(&format!("\n{}", self.paint("1", text)));
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Prints a line. An error is ignored: the demo has to run on and to clean up.
fn line(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// A number with its digits in groups of three, such as `12,345`.
pub(super) fn count(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", count(number / 1000), number % 1000),
    }
}

/// A size in mebibytes, such as `256 MiB`.
pub(super) fn size(bytes: u64) -> String {
    format!("{} MiB", count(bytes >> 20))
}

/// A length of time, such as `250 ms` or `3.2 s`.
pub(super) fn duration(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// A length of time in milliseconds, such as `1,742 ms`.
pub(super) fn milliseconds(time: Duration) -> String {
    format!(
        "{} ms",
        count(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_for_people() {
        assert_eq!(
            [0, 999, 1000, 1_002_034].map(count),
            ["0", "999", "1,000", "1,002,034"]
        );
        assert_eq!(size(256 << 20), "256 MiB");
        let times = [250, 3210].map(|ms| duration(Duration::from_millis(ms)));
        assert_eq!(times, ["250 ms", "3.2 s"]);
        assert_eq!(milliseconds(Duration::from_millis(1742)), "1,742 ms");
    }
}
