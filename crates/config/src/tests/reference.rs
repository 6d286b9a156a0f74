//! `docs/reference-config.md` and the parser against the description of the settings.

use std::collections::BTreeMap;

use super::settings::{Setting, Values};
use super::*;

const REFERENCE: &str = include_str!("../../../../docs/reference-config.md");

/// The rows of the table below a heading: the columns after the key, by key. `what`: the middle column.
fn rows<'t>(heading: &str, what: &str) -> BTreeMap<&'t str, [&'t str; 2]> {
    let (_, section) = REFERENCE.split_once(&format!("\n{heading}\n")).unwrap();
    let (_, table) = section
        .split_once(&format!("| key | {what} | value |\n"))
        .unwrap();
    let rows = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let columns: Vec<&str> = row
            .trim_matches('|')
            .splitn(3, " | ")
            .map(str::trim)
            .collect();
        (columns[0].trim_matches('`'), [columns[1], columns[2]])
    })
    .collect()
}

fn sections() -> [(&'static str, &'static [Setting]); 5] {
    [
        ("## `[[datastore]]`", settings::DATASTORE),
        ("## `[datastore.peer]`", settings::PEER),
        ("## `[datastore.witness]`", settings::WITNESS),
        ("## `[datastore.snapshots]`", settings::SNAPSHOTS),
        ("## `[datastore.snapshot_hooks]`", settings::SNAPSHOT_HOOKS),
    ]
}

#[test]
fn the_reference_describes_the_keys_that_there_are_and_no_other() {
    for (heading, section) in sections() {
        let mut rows = rows(heading, "default");
        for setting in section {
            let [default, meaning] = rows.remove(setting.key).unwrap_or_else(|| {
                panic!(
                    "{heading} of the reference does not describe `{}`",
                    setting.key
                )
            });
            check_row(setting, default, meaning);
        }
        assert!(
            rows.is_empty(),
            "{heading} describes what is no key: {rows:?}"
        );
    }
    let node: Vec<&str> = rows("## `[node]`", "required").into_keys().collect();
    let mut keys = sections::NODE_KEYS.to_vec();
    keys.sort_unstable();
    assert_eq!(node, keys);
}

fn check_row(setting: &Setting, default: &str, meaning: &str) {
    let key = setting.key;
    let has_default = |expected: &str| {
        assert!(
            default.starts_with(expected),
            "default of {key}: {default}, not {expected}"
        );
    };
    match setting.values {
        Values::Required { .. } => has_default("required"),
        Values::Optional | Values::Section => has_default("none"),
        Values::Word { words, default } => {
            has_default(&format!("`{:?}`", default()));
            for word in words() {
                // A reader knows the other one of two words.
                let is_named = meaning.contains(&format!("`{word:?}`"));
                assert!(is_named || word == default(), "{key} = {word}");
            }
        }
        Values::Number(number) => {
            has_default(&number.default.to_string());
            let unit = if number.unit.is_empty() { "" } else { " ms" };
            let off = if number.has_off { ", or 0" } else { "" };
            let bounds = format!("{} to {}{unit}{off}", number.least, number.most);
            assert!(meaning.contains(&bounds), "bounds of {key}: {bounds}");
        }
    }
}

/// The good file with one more line in the section that has a key.
fn with_line(heading: &str, line: &str) -> String {
    let header = heading.trim_start_matches("## ").trim_matches('`');
    let file = good();
    let (before, after) = file.split_once(&format!("{header}\n")).unwrap();
    let key = line.split(' ').next().unwrap();
    let is_other = |other: &&str| !other.starts_with(&format!("{key} = "));
    let (section, rest) = after.split_once("\n\n").unwrap();
    let kept: Vec<&str> = section.lines().filter(is_other).collect();
    format!("{before}{header}\n{line}\n{}\n\n{rest}", kept.join("\n"))
}

#[test]
fn the_parser_reads_every_key_and_refuses_other_values() {
    let of_parser = sections().into_iter().take(2);
    for (heading, setting) in
        of_parser.flat_map(|(heading, all)| all.iter().map(move |it| (heading, it)))
    {
        let key = setting.key;
        let (wrong, in_cure) = match setting.values {
            Values::Number(number) => (
                (number.most + 1).to_string(),
                format!("{} to {}", number.least, number.most),
            ),
            Values::Word { words, .. } => ("\"nonsense\"".to_owned(), format!("{:?}", words()[0])),
            Values::Required { .. } | Values::Optional | Values::Section => {
                ("[]".to_owned(), String::new())
            }
        };
        if key == "failover_after_ms" || matches!(setting.values, Values::Section) {
            // Only with a witness, and a section of its own.
            continue;
        }
        let found = problems(&with_line(heading, &format!("{key} = {wrong}")));
        let of_key: Vec<_> = found.iter().filter(|it| it.key == key).collect();
        assert_eq!(of_key.len(), 1, "{key}: {found:#?}");
        assert!(of_key[0].cure.contains(&in_cure), "{key}: {}", of_key[0]);
    }
}
