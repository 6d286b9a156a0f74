//! The sections of `docs/json.md`, the keys that a section describes, and the keys of a JSON value.

use std::collections::BTreeSet;

use serde_json::Value;

/// The sections of the page that begin with `## `.
pub fn sections() -> impl Iterator<Item = &'static str> {
    include_str!("../../docs/json.md").split("\n## ").skip(1)
}

/// The keys that a section describes: the first column of its tables.
pub fn described_keys(section: &str) -> BTreeSet<String> {
    let lines = section.lines();
    lines
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect()
}

/// The keys of all objects in a value.
pub fn keys_of(value: &Value) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    collect(value, &mut keys);
    keys
}

fn collect(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            keys.extend(members.keys().cloned());
            members.values().for_each(|member| collect(member, keys));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, keys)),
        _ => {}
    }
}
