//! One table of a configuration file, while it is being read.
//!
//! A reader converts each value to its type, or reports the mistake with its line. A caller goes on after a
//! mistake, so that all mistakes are reported.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Problems, Rejection};

/// The lines of the keys of a section, for mistakes that only a comparison of sections shows.
#[derive(Clone, Debug)]
pub(super) struct KeyLines {
    pub(super) title: String,
    header_line: usize,
    lines: BTreeMap<String, usize>,
}

impl KeyLines {
    /// Returns the line of `key`, or of the section's header if the file does not have the key.
    pub(super) fn line(&self, key: &str) -> usize {
        self.lines.get(key).copied().unwrap_or(self.header_line)
    }
}

/// The outcome of reading a key.
#[derive(Debug)]
pub(super) enum KeyValue<T> {
    /// The file does not have the key.
    Absent,
    /// The value is wrong, and the mistake is reported.
    Refused,
    /// The value is valid.
    Value(T),
}

impl<T> KeyValue<T> {
    /// Returns the value, if it is valid.
    pub(super) fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Refused => None,
        }
    }
}

/// One table, with its title and the line of its header.
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

    /// Sets a title that distinguishes this section from others of its kind, such as `[[datastore]] "alpha"`.
    pub(super) fn set_title(&mut self, title: String) {
        self.title = title;
    }

    pub(super) fn key_lines(&self, problems: &Problems<'_>) -> KeyLines {
        let line = |span: Range<usize>| problems.line_at(span.start);
        let keys = self.table.keys();
        KeyLines {
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

    /// Reports a section of this document that only the file of another program has.
    pub(super) fn refuse_foreign(&self, problems: &mut Problems<'_>, key: &str, why: Rejection) {
        let lines = self.key_lines(problems);
        problems.report(lines.line(key), "", key, why);
    }

    /// Reports every key that is not in `known`, with the most similar known key.
    pub(super) fn refuse_unknown(&self, problems: &mut Problems<'_>, known: &[&str]) {
        self.refuse_unknown_below(problems, known, ("", &[]));
    }

    /// The same, for a section below another one, which has the keys `above`.
    pub(super) fn refuse_unknown_below(
        &self,
        problems: &mut Problems<'_>,
        known: &[&str],
        (parent, above): (&str, &[&str]),
    ) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let rejection = if above.contains(&name) {
                Rejection::new(
                    format!(
                        "this key belongs to {parent}, and TOML gives it to the last section above it"
                    ),
                    format!("write it between {parent} and the first section of the datastore"),
                )
            } else {
                Rejection::new("there is no such key here", nearest_cure(name, known))
            };
            problems.report(
                problems.line_at(key.span().start),
                &self.title,
                name,
                rejection,
            );
        }
    }

    /// Returns the value of `key`, or `default` if the key is missing (or is refused and reported).
    pub(super) fn optional<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        default: T,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Rejection>,
    ) -> T {
        self.read(problems, key, read).value().unwrap_or(default)
    }

    /// Returns the value of `key`. A missing key is a mistake.
    pub(super) fn required<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        example: &str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Rejection>,
    ) -> Option<T> {
        let found = self.read(problems, key, read);
        if matches!(found, KeyValue::Absent) {
            self.report_missing(problems, key, example);
        }
        found.value()
    }

    /// Converts the value of `key` with `read`. If `read` refuses the value, the mistake is reported.
    pub(super) fn read<T>(
        &self,
        problems: &mut Problems<'_>,
        key: &str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, Rejection>,
    ) -> KeyValue<T> {
        let Some((name, value)) = self.find(key) else {
            return KeyValue::Absent;
        };
        let line = problems.line_at(name.span().start);
        match read(value.get_ref()) {
            Ok(value) => KeyValue::Value(value),
            Err(rejection) => {
                problems.report(line, &self.title, key, rejection);
                KeyValue::Refused
            }
        }
    }

    pub(super) fn report_missing(&self, problems: &mut Problems<'_>, key: &str, example: &str) {
        let rejection =
            Rejection::new("this key is required but missing", format!("add {example}"));
        problems.report(self.header_line, &self.title, key, rejection);
    }

    /// Returns the table `[key]` below this one, if `key` exists and is a table.
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
        let rejection = Rejection::new("this must be a table", format!("write it as {title}"));
        problems.report(line, &self.title, key, rejection);
        None
    }

    /// Returns the tables `[[key]]` below this one.
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
            let rejection = Rejection::new(
                "this must be a list of tables",
                format!("write {title} with double brackets, once for each"),
            );
            problems.report(
                problems.line_at(name.span().start),
                &self.title,
                key,
                rejection,
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

/// Returns the word of `known` that is most similar to `name`, if any is similar at all.
pub(super) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let likeness = |word: &&str| strsim::jaro_winkler(&name.to_lowercase(), word);
    known
        .iter()
        .map(|word| (likeness(word), *word))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, word)| word)
}
