//! The crates of `Cargo.lock`: their licences, sources and names, by `deny.toml`.
//!
//! `scripts/check-dependencies` checks the same with cargo-deny, and known vulnerabilities. Its tool takes minutes to build, so
//! the test command leaves it to its long form.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // tests may panic

use std::collections::BTreeSet;
use std::process::Command;

use spdx::{Expression, ParseMode};

/// Between the package and its licence in a line.
const SEPARATOR: &str = " = ";

/// The part of `deny.toml` that this test knows.
struct DenyRules {
    /// Accepted licences, with their exceptions.
    licences: BTreeSet<String>,
    /// Crates that may not be used.
    banned: BTreeSet<String>,
}

impl DenyRules {
    fn read() -> Self {
        let text = std::fs::read_to_string("deny.toml").unwrap();
        let rules: toml::Table = text.parse().unwrap();
        let list = |section: &str, key: &str| rules[section][key].as_array().unwrap().clone();
        let word = |value: &toml::Value| value.as_str().unwrap().to_owned();
        Self {
            licences: list("licenses", "allow").iter().map(word).collect(),
            banned: list("bans", "deny")
                .iter()
                .map(|it| word(&it["crate"]))
                .collect(),
        }
    }

    /// The mistakes of the crates in the output of `cargo tree`: for each a line with package and licence.
    fn findings(&self, tree: &str) -> Vec<String> {
        let lines: BTreeSet<&str> = tree.lines().filter(|line| !line.is_empty()).collect();
        lines
            .into_iter()
            .filter_map(|line| self.finding(line))
            .collect()
    }

    fn finding(&self, line: &str) -> Option<String> {
        // Cargo marks the packages whose dependencies it has listed before.
        let line = line.strip_suffix(" (*)").unwrap_or(line);
        let (package, licence) = line.split_once(SEPARATOR)?;
        let (name, source) = package.split_once(' ')?;
        // A path of ours, or the place of a crate that is not from the registry.
        let place = source.split_once(" (").map_or("", |(_, place)| place);
        if place.starts_with('/') {
            None
        } else if !place.is_empty() && place != "proc-macro)" {
            Some(format!("{name} comes from {place}"))
        } else if self.banned.contains(name) {
            Some(format!("{name} is banned"))
        } else {
            (!self.accepts(licence)).then(|| format!("{name} has the licence {licence:?}"))
        }
    }

    fn accepts(&self, licence: &str) -> bool {
        Expression::parse_mode(licence, ParseMode::LAX)
            .is_ok_and(|it| it.evaluate(|wanted| self.licences.contains(&wanted.to_string())))
    }
}

#[test]
fn every_crate_has_an_accepted_licence_and_source() {
    let listed = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--workspace",
            "--all-features",
            "--prefix",
            "none",
        ])
        .args([
            "--edges",
            "normal,build",
            "--format",
            &format!("{{p}}{SEPARATOR}{{l}}"),
        ])
        .output()
        .unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let tree = String::from_utf8(listed.stdout).unwrap();
    assert!(tree.lines().count() > 100);
    let findings = DenyRules::read().findings(&tree);
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn a_crate_that_is_not_accepted_is_found() {
    let rules = DenyRules::read();
    let found = |package: &str, licence: &str| rules.findings(&format!("{package} = {licence}"));
    for good in ["MIT OR GPL-3.0-only", "MIT/Apache-2.0"] {
        assert!(found("good v1.0.0", good).is_empty());
        assert!(found("good v1.0.0 (proc-macro)", good).is_empty());
    }
    for bad in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "", "?"] {
        assert_eq!(found("bad v1.0.0", bad).len(), 1, "{bad}");
        assert!(found("ours v1.0.0 (/somewhere)", bad).is_empty());
    }
    assert_eq!(found("x v1.0.0 (https://example.org/x#1)", "MIT").len(), 1);
    assert_eq!(found("openssl v1.0.0", "MIT").len(), 1);
}
