//! One table of a configuration file while it is being read.
//!
//! Every value is taken through a reader that either returns it typed or reports why not, with
//! the line it stands on. A caller goes on after a mistake, so that all of them are reported.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Problems, Refusal};

/// Where each key of a section stands, for mistakes that show only when sections are compared.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) title: String,
    header_line: usize,
    lines: BTreeMap<String, usize>,
}

impl Place {
    /// The line of `key`, or of the section's header when the key is not written.
    pub(super) fn line(&self, key: &str) -> usize {
        self.lines.get(key).copied().unwrap_or(self.header_line)
    }
}

/// What became of a key.
#[derive(Debug)]
pub(super) enum Found<T> {
    /// It is not written.
    Absent,
    /// It is written wrongly, which has been reported.
    Refused,
    /// It is written and right.
    Value(T),
}

impl<T> Found<T> {
    /// The value, if there is one.
    pub(super) fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Refused => None,
        }
    }
}

/// One table with its name and its place in the file.
pub(super) struct Section<'d> {
    table: &'d DeTable<'d>,
    title: String,
    header_line: usize,
}

impl<'d> Section<'d> {
    /// The whole document.
    pub(super) const fn document(table: &'d DeTable<'d>) -> Self {
        Self {
            table,
            title: String::new(),
            header_line: 1,
        }
    }

    fn new(table: &'d DeTable<'d>, title: &str, header_line: usize) -> Self {
        Self {
            table,
            title: title.to_owned(),
            header_line,
        }
    }

    /// Adds what tells this section from others like it, such as `"alpha"`.
    pub(super) fn set_title(&mut self, title: String) {
        self.title = title;
    }

    pub(super) fn place(&self, problems: &Problems<'_>) -> Place {
        let line = |span: Range<usize>| problems.line_at(span.start);
        let keys = self.table.keys();
        Place {
            title: self.title.clone(),
            header_line: self.header_line,
            lines: keys
                .map(|key| (key.get_ref().to_string(), line(key.span())))
                .collect(),
        }
    }

    fn find(
        &self,
        key: &str,
    ) -> Option<(
        &'d Spanned<toml::de::DeString<'d>>,
        &'d Spanned<DeValue<'d>>,
    )> {
        self.table.iter().find(|(known, _)| known.get_ref() == key)
    }

    /// Reports every key that is not in `known`, with the nearest one that is.
    pub(super) fn refuse_unknown(&self, problems: &mut Problems<'_>, known: &[&str]) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let refusal = Refusal::new("there is no such key here", nearest_cure(name, known));
                problems.report(
                    problems.line_at(key.span().start),
                    &self.title,
                    name,
                    refusal,
                );
            }
        }
    }

    /// The value of `key`, or `default` when the key is not written (or is refused and reported).
    pub(super) fn optional<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        default: T,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Refusal>,
    ) -> T {
        self.read(problems, key, read).value().unwrap_or(default)
    }

    /// The value of `key`; its absence is a mistake.
    pub(super) fn required<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        example: &str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Refusal>,
    ) -> Option<T> {
        let found = self.read(problems, key, read);
        if matches!(found, Found::Absent) {
            self.report_missing(problems, key, example);
        }
        found.value()
    }

    /// The value of `key` as `read` makes it; what `read` refuses is reported.
    pub(super) fn read<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Refusal>,
    ) -> Found<T> {
        let Some((name, value)) = self.find(key) else {
            return Found::Absent;
        };
        let line = problems.line_at(name.span().start);
        match read(value.get_ref()) {
            Ok(value) => Found::Value(value),
            Err(refusal) => {
                problems.report(line, &self.title, key, refusal);
                Found::Refused
            }
        }
    }

    pub(super) fn report_missing(&self, problems: &mut Problems<'_>, key: &str, example: &str) {
        let refusal = Refusal::new("this key is required but missing", format!("add {example}"));
        problems.report(self.header_line, &self.title, key, refusal);
    }

    /// The table `[key]` below this one, if it is written and is a table.
    pub(super) fn table(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        title: &str,
    ) -> Option<Section<'d>> {
        let (name, value) = self.find(key)?;
        let line = problems.line_at(name.span().start);
        if let DeValue::Table(table) = value.get_ref() {
            return Some(Section::new(table, title, line));
        }
        let refusal = Refusal::new("this must be a table", format!("write it as {title}"));
        problems.report(line, &self.title, key, refusal);
        None
    }

    /// The tables `[[key]]` below this one.
    pub(super) fn tables(&self, problems: &mut Problems<'_>, key: &str) -> Vec<Section<'d>> {
        let title = format!("[[{key}]]");
        let Some((name, value)) = self.find(key) else {
            return Vec::new();
        };
        let sections = table_list(value.get_ref()).map(|tables| {
            let with_line = |(table, span): (_, Range<usize>)| {
                Section::new(table, &title, problems.line_at(span.start))
            };
            tables.into_iter().map(with_line).collect()
        });
        sections.unwrap_or_else(|| {
            let refusal = Refusal::new(
                "this must be a list of tables",
                format!("write {title} with double brackets, once for each"),
            );
            problems.report(
                problems.line_at(name.span().start),
                &self.title,
                key,
                refusal,
            );
            Vec::new()
        })
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }
}

fn table_list<'d>(value: &'d DeValue<'d>) -> Option<Vec<(&'d DeTable<'d>, Range<usize>)>> {
    let DeValue::Array(array) = value else {
        return None;
    };
    let as_table = |item: &'d Spanned<DeValue<'d>>| match item.get_ref() {
        DeValue::Table(table) => Some((table, item.span())),
        _ => None,
    };
    array.iter().map(as_table).collect()
}

fn nearest_cure(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("remove it; the keys here are: {}", known.join(", ")),
    }
}

/// The word of `known` most like `name`, if any is like it at all.
pub(super) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let likeness = |word: &&str| strsim::jaro_winkler(&name.to_lowercase(), word);
    known
        .iter()
        .map(|word| (likeness(word), *word))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, word)| word)
}
