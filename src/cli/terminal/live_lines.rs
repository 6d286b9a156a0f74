//! Lines on a terminal that show progress, rewritten in place.
//!
//! Without a terminal there are no lines. An error of writing never stops the command that shows them.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Time between two writes.
const INTERVAL: Duration = Duration::from_millis(200);
/// The width of a terminal that does not tell its own.
const WIDTH: usize = 80;

/// See the head of this file. A drop removes the lines.
pub(in crate::cli) struct LiveLines {
    is_terminal: bool,
    /// The last write.
    written: Option<Instant>,
    /// Number of lines on the terminal.
    lines: usize,
}

impl LiveLines {
    /// No line so far, on standard error.
    pub(in crate::cli) fn new() -> Self {
        Self {
            is_terminal: stderr().is_terminal(),
            written: None,
            lines: 0,
        }
    }

    /// Whether there is a terminal.
    pub(in crate::cli) const fn are_visible(&self) -> bool {
        self.is_terminal
    }

    /// Shows lines in place of those before, unless these are very new.
    pub(in crate::cli) fn show(&mut self, lines: &[String]) {
        let is_due = self
            .written
            .is_none_or(|written| written.elapsed() >= INTERVAL);
        if self.is_terminal && is_due {
            self.written = Some(Instant::now());
            self.write(lines);
        }
    }

    fn write(&mut self, lines: &[String]) {
        let text = rewritten(self.lines, lines, width());
        self.lines = lines.len();
        let mut out = stderr();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for LiveLines {
    fn drop(&mut self) {
        if self.lines > 0 {
            self.write(&[]);
        }
    }
}

fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(stderr());
    size.ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|&columns| columns > 0)
        .unwrap_or(WIDTH)
}

/// The text that replaces so many lines, with the cursor behind the last one, by others. A line that is too long is cut: a
/// terminal would break it, and the next lines would not find its begin.
fn rewritten(before: usize, lines: &[String], width: usize) -> String {
    let up = match before {
        0 | 1 => String::new(),
        more => format!("\x1b[{}A", more - 1),
    };
    let cut = |line: &String| {
        line.chars()
            .take(width.saturating_sub(1))
            .collect::<String>()
    };
    let lines: Vec<String> = lines.iter().map(cut).collect();
    format!("\r{up}\x1b[J{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn lines_replace_those_before() {
        assert_eq!(rewritten(0, &lines(&["one"]), 80), "\r\x1b[Jone");
        assert_eq!(
            rewritten(1, &lines(&["two", "three"]), 80),
            "\r\x1b[Jtwo\nthree"
        );
        assert_eq!(rewritten(2, &[], 80), "\r\x1b[1A\x1b[J");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        assert_eq!(rewritten(0, &lines(&["précis"]), 5), "\r\x1b[Jpréc");
        assert_eq!(rewritten(0, &lines(&["x"]), 0), "\r\x1b[J");
    }
}
