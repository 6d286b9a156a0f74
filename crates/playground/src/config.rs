//! The configuration file of a playground's node, as the playground writes it and reads it back.
//!
//! The file is one that `lockstep init` could have written, with the settings of the playground.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use lockstep_config::{ConfigDraft, DatastoreConfig, draft_text, load};

/// Name of the datastore in every playground.
pub(crate) const DATASTORE: &str = "playground";

/// The first lines of the file.
const HEAD: &str = "\
# The playground writes this file again whenever it starts.
";

/// Writes the file.
pub(crate) fn write(draft: &ConfigDraft, path: &Path) -> Result<()> {
    let text = draft_text(draft)
        .with_context(|| format!("cannot write the configuration {}", path.display()))?;
    fs::write(path, format!("{HEAD}{text}"))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The datastore in the file of an earlier playground.
pub(crate) fn read(path: &Path) -> Result<DatastoreConfig> {
    let not_ours = || {
        format!(
            "{} is not the configuration of a playground\n  cure: choose another --dir",
            path.display()
        )
    };
    let node = load(path).with_context(not_ours)?;
    let mut datastores = node.datastores.into_iter();
    datastores.next().with_context(not_ours)
}
