//! The section `[datastore.snapshot_hooks]`: the commands of the operator before and after each snapshot.

use lockstep_driver::config::{SnapshotHooks, settings};
use toml::de::DeValue;

use super::problem::{Problems, Rejection};
use super::section::Section;
use super::value;

/// The key of the section, which may also be an inline table.
const KEY: &str = "snapshot_hooks";
/// The form of the section in a message.
const EXAMPLE: &str =
    "snapshot_hooks = { before = [\"/etc/lockstep/freeze\"], after = [\"/etc/lockstep/thaw\"] }";
/// The form of a command in a message.
const COMMAND: &str = "write it as [\"/etc/lockstep/freeze\", \"ARGUMENT\"]: no shell reads it";

/// Reads the commands of a datastore. Without the section there is none.
pub(super) fn read(problems: &mut Problems<'_>, datastore: &Section<'_>) -> SnapshotHooks {
    let default = SnapshotHooks::default();
    let Some(section) = datastore.table(problems, KEY, EXAMPLE) else {
        return default;
    };
    let above = ("[[datastore]]", &*settings::keys(settings::DATASTORE));
    section.refuse_unknown_below(problems, &settings::keys(settings::SNAPSHOT_HOOKS), above);
    SnapshotHooks {
        before: section.optional(problems, "before", Vec::new(), words),
        after: section.optional(problems, "after", Vec::new(), words),
        limit: section.optional(problems, "limit_ms", default.limit, |value| {
            value::millis(value, &settings::HOOK_LIMIT)
        }),
    }
}

/// Reads the words of a command: the absolute path of the program, and its arguments.
fn words(value: &DeValue<'_>) -> Result<Vec<String>, Rejection> {
    let list = value
        .as_array()
        .ok_or_else(|| Rejection::new("a command must be a list of strings", COMMAND))?;
    let Some(program) = list.first() else {
        return Err(Rejection::new(
            "this command has no program",
            "add the absolute path of the program, or remove the key",
        ));
    };
    value::path(program.get_ref())?;
    let words = list.iter().map(|word| {
        let word = value::text(word.get_ref())?;
        if word.contains('\0') {
            return Err(Rejection::new(
                format!("{word:?} holds a NUL character"),
                "write the argument without it",
            ));
        }
        Ok(word.to_owned())
    });
    words.collect()
}
