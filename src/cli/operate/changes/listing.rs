//! The entries of an answer on standard output, as they come: an answer may have millions.
//!
//! A closed standard output is an error, other than for other commands: a list that is cut is no list.

use std::io::{self, BufWriter, Stdout, Write};

use anyhow::{Context, Result};
use clap::ValueEnum;
use lockstep_driver::report::{ChangeEntry, ChangesHead};
use serde_json::json;

use crate::cli::terminal::{path_bytes, printable};

/// A part of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli::operate) enum Only {
    /// Entries that are there
    Present,
    /// Names that are gone
    Removed,
}

/// The form of the list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cli::operate) enum Form {
    /// A line for each entry.
    Text,
    /// The paths, each with a zero byte behind.
    Null,
    /// JSON.
    Json,
}

/// See the head of this file.
pub(super) struct Listing {
    form: Form,
    only: Option<Only>,
    out: BufWriter<Stdout>,
    listed: u64,
}

impl Listing {
    pub(super) fn new(form: Form, only: Option<Only>) -> Self {
        Self {
            form,
            only,
            out: BufWriter::new(io::stdout()),
            listed: 0,
        }
    }

    pub(super) fn begin(&mut self, head: &ChangesHead) -> Result<()> {
        if self.form == Form::Json {
            let head = serde_json::to_string(head)?;
            // The object goes on with the entries.
            let head = head.trim_end_matches('}');
            write!(self.out, "{head},\"entries\":[").context(CUT)?;
        }
        Ok(())
    }

    pub(super) fn add(&mut self, entries: &[ChangeEntry]) -> Result<()> {
        let only = self.only;
        let wanted = entries.iter().filter(|entry| is_wanted(entry, only));
        for entry in wanted {
            self.write(entry).context(CUT)?;
            self.listed += 1;
        }
        Ok(())
    }

    fn write(&mut self, entry: &ChangeEntry) -> io::Result<()> {
        match self.form {
            Form::Text => {
                writeln!(self.out, "{:<8} {}", entry.change, printable(&entry.path))?;
                for run in &entry.ranges {
                    writeln!(self.out, "  bytes {} + {}", run.offset, run.length)?;
                }
                Ok(())
            }
            Form::Null => {
                self.out
                    .write_all(&path_bytes(&entry.path, entry.path_hex.as_deref()))?;
                self.out.write_all(&[0])
            }
            Form::Json => {
                let comma = if self.listed == 0 { "\n" } else { ",\n" };
                write!(self.out, "{comma}{}", serde_json::to_string(entry)?)
            }
        }
    }

    /// Ends the list. Returns how many entries it has.
    pub(super) fn end(mut self) -> Result<u64> {
        if self.form == Form::Json {
            let end = json!({ "entries_total": self.listed }).to_string();
            let end = end.trim_start_matches('{');
            writeln!(self.out, "\n],{end}").context(CUT)?;
        }
        self.out.flush().context(CUT)?;
        Ok(self.listed)
    }
}

/// The error of an answer that cannot be printed.
pub(in crate::cli::operate) const CUT: &str =
    "cannot print all of the answer\n  cure: ask again: nothing is lost";

fn is_wanted(entry: &ChangeEntry, only: Option<Only>) -> bool {
    match only {
        None => true,
        Some(Only::Present) => entry.change != "removed",
        Some(Only::Removed) => entry.change == "removed",
    }
}
