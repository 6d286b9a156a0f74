//! How the demo speaks to whoever watches: plain lines, with colour only on a terminal.

use std::cell::Cell;

use crate::cli::{is_terminal, say};

/// What is shown so far.
#[derive(Debug)]
pub(super) struct Show {
    colour: bool,
    steps: Cell<u32>,
}

impl Show {
    pub(super) fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none();
        Self {
            colour: wanted && is_terminal(),
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

    /// What somebody would type to see the same.
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

/// Shows a line. The demo goes on, and cleans up, also when nobody can read it.
fn line(text: &str) {
    let _ = say(&format!("{text}\n"));
}
