//! How the demo speaks to whoever watches: plain lines, with colour only on a terminal.

use std::cell::Cell;

use crate::cli::is_terminal;

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
        println!("\n{}\n", self.paint("1", text));
    }

    /// Begins the next step of the story.
    pub(super) fn step(&self, text: &str) {
        self.steps.set(self.steps.get() + 1);
        println!(
            "\n{}",
            self.paint("1", &format!("{}  {text}", self.steps.get()))
        );
    }

    pub(super) fn note(&self, text: &str) {
        println!("   {}", self.paint("0", text));
    }

    /// What somebody would type to see the same.
    pub(super) fn command(&self, text: &str) {
        println!("   {}", self.paint("2", &format!("$ {text}")));
    }

    pub(super) fn good(&self, text: &str) {
        println!("   {} {text}", self.paint("32", "✓"));
    }

    pub(super) fn bad(&self, text: &str) {
        println!(
            "   {} {text}\n\n{}",
            self.paint("31", "✗"),
            self.paint("1;31", "This is not as it should be.")
        );
    }

    pub(super) fn end(&self, text: &str) {
        println!("\n{}", self.paint("1", text));
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
