//! The entries of a difference on standard output, page by page.
//!
//! The cursor of a page counts once the page is printed. A closed standard output is an error: a list that is cut is no list.

use std::io::{self, BufWriter, Stdout, Write};

use anyhow::{Context, Result};
use lockstep_driver::report::{DiffHead, DiffItem};
use serde_json::json;

use crate::cli::operate::changes::listing::{CUT, Form, Only};
use crate::cli::terminal::{path_bytes, printable};

/// See the head of this file.
pub(super) struct DiffListing<W: Write = Stdout> {
    form: Form,
    only: Option<Only>,
    out: BufWriter<W>,
    listed: u64,
    cursor: Option<String>,
}

impl DiffListing {
    pub(super) fn new(form: Form, only: Option<Only>) -> Self {
        Self::to(io::stdout(), form, only)
    }
}

impl<W: Write> DiffListing<W> {
    fn to(out: W, form: Form, only: Option<Only>) -> Self {
        Self {
            form,
            only,
            out: BufWriter::new(out),
            listed: 0,
            cursor: None,
        }
    }

    /// The number of entries.
    pub(super) const fn listed(&self) -> u64 {
        self.listed
    }

    /// The place behind the last page; `None` at the end of the difference, and before the first page.
    pub(super) fn cursor(&self) -> Option<&str> {
        self.cursor.as_deref()
    }

    pub(super) fn begin(&mut self, head: &DiffHead) -> Result<()> {
        if self.form == Form::Json {
            writeln!(self.out, "{}", serde_json::to_string(head)?).context(CUT)?;
        }
        Ok(())
    }

    pub(super) fn page(&mut self, items: &[DiffItem], cursor: Option<String>) -> Result<()> {
        let only = self.only;
        for item in items.iter().filter(|item| is_wanted(item, only)) {
            self.item(item).context(CUT)?;
            self.listed += u64::from(!item.continued);
        }
        if self.form == Form::Json {
            writeln!(self.out, "{}", json!({ "cursor": cursor })).context(CUT)?;
        }
        self.out.flush().context(CUT)?;
        self.cursor = cursor;
        Ok(())
    }

    fn item(&mut self, item: &DiffItem) -> io::Result<()> {
        match self.form {
            Form::Text => self.text(item),
            Form::Null => self.names(item),
            Form::Json => writeln!(self.out, "{}", serde_json::to_string(item)?),
        }
    }

    fn text(&mut self, item: &DiffItem) -> io::Result<()> {
        let path = printable(&item.path);
        let names = match &item.old_path {
            Some(old) if item.change == "renamed" => format!("{} -> {path}", printable(old)),
            Some(old) => format!("{path} (was {})", printable(old)),
            None => path,
        };
        let attributes = item.attributes.iter().map(String::as_str);
        let what: Vec<&str> = attributes.chain(item.xattrs.then_some("xattrs")).collect();
        let what = if what.is_empty() {
            String::new()
        } else {
            format!(": {}", what.join(", "))
        };
        writeln!(self.out, "{:<8} {names}{what}", item.change)?;
        for run in &item.ranges {
            let kind = if run.zeros { "zeros" } else { "bytes" };
            writeln!(self.out, "  {kind} {} + {}", run.offset, run.length)?;
        }
        Ok(())
    }

    fn names(&mut self, item: &DiffItem) -> io::Result<()> {
        let old = item
            .old_path
            .as_deref()
            .filter(|_| item.change == "renamed");
        let old = old.map(|old| path_bytes(old, item.old_path_hex.as_deref()));
        let path = path_bytes(&item.path, item.path_hex.as_deref());
        let (gone, present) = if is_gone(item) {
            (Some(path), None)
        } else {
            (old, Some(path))
        };
        let gone = gone.filter(|_| self.only != Some(Only::Present));
        let present = present.filter(|_| self.only != Some(Only::Removed));
        for name in gone.into_iter().chain(present).filter(|_| !item.continued) {
            self.out.write_all(&name)?;
            self.out.write_all(&[0])?;
        }
        Ok(())
    }
}

/// Whether nothing has the path any more.
fn is_gone(item: &DiffItem) -> bool {
    matches!(&*item.change, "deleted" | "unlinked")
}

fn is_wanted(item: &DiffItem, only: Option<Only>) -> bool {
    match only {
        None => true,
        Some(Only::Present) => !is_gone(item),
        Some(Only::Removed) => is_gone(item) || item.change == "renamed",
    }
}

#[cfg(test)]
mod tests {
    use lockstep_driver::report::DiffBytes;

    use super::*;

    fn item(change: &str, old_path: Option<&str>, path: &str) -> DiffItem {
        DiffItem {
            change: change.to_owned(),
            path: path.to_owned(),
            old_path: old_path.map(str::to_owned),
            ..DiffItem::default()
        }
    }

    fn items() -> [DiffItem; 4] {
        let changed = DiffItem {
            attributes: vec!["size".to_owned()],
            xattrs: true,
            ranges: vec![
                DiffBytes {
                    offset: 0,
                    length: 4096,
                    zeros: false,
                },
                DiffBytes {
                    offset: 8192,
                    length: 1,
                    zeros: true,
                },
            ],
            ..item("changed", None, "a\nb")
        };
        let deleted = DiffItem {
            path_hex: Some("ff".to_owned()),
            ..item("deleted", None, "\u{fffd}")
        };
        [
            changed,
            item("renamed", Some("old"), "new"),
            deleted,
            item("linked", Some("old"), "too"),
        ]
    }

    fn print(form: Form, only: Option<Only>) -> Vec<u8> {
        let mut listing = DiffListing::to(Vec::new(), form, only);
        listing.begin(&DiffHead::default()).unwrap();
        listing.page(&items(), Some("00".to_owned())).unwrap();
        assert_eq!(listing.cursor(), Some("00"));
        listing.page(&[], None).unwrap();
        assert_eq!(listing.cursor(), None);
        listing.out.into_inner().unwrap()
    }

    #[test]
    fn a_difference_is_listed_in_each_form() {
        let text = "changed  a\\nb: size, xattrs\n  bytes 0 + 4096\n  zeros 8192 + 1\nrenamed  old -> new\n\
                    deleted  \u{fffd}\nlinked   too (was old)\n";
        assert_eq!(print(Form::Text, None), text.as_bytes());
        assert_eq!(print(Form::Null, None), b"a\nb\0old\0new\0\xff\0too\0");
        assert_eq!(print(Form::Null, Some(Only::Present)), b"a\nb\0new\0too\0");
        assert_eq!(print(Form::Null, Some(Only::Removed)), b"old\0\xff\0");
        let gone = "renamed  old -> new\ndeleted  \u{fffd}\n";
        assert_eq!(print(Form::Text, Some(Only::Removed)), gone.as_bytes());
        let lines = String::from_utf8(print(Form::Json, None)).unwrap();
        let lines: Vec<serde_json::Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 7);
        assert_eq!(lines[0]["from"]["name"], "");
        assert_eq!(lines[2]["old_path"], "old");
        assert_eq!(lines[5]["cursor"], "00");
        assert!(lines[6]["cursor"].is_null());
    }
}
