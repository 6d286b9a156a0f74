//! The configuration file of a playground's node, as the playground writes it and reads it back.
//!
//! The file is one that `lockstep init` could have written, with the settings of the playground.

use std::fs;
use std::num::NonZeroU64;
use std::path::Path;

use anyhow::{Context, Result, ensure};
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

/// Sets the most bytes that a resync reads in a second, in a file that the playground has written. A node has the limit from its next start
/// on.
pub(crate) fn limit_resync(path: &Path, bytes_per_sec: u64) -> Result<()> {
    const SECTION: &str = "[[datastore]]\n";
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let limited = format!("{SECTION}resync_bytes_per_second = {bytes_per_sec}\n");
    fs::write(path, text.replacen(SECTION, &limited, 1))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let limits = read(path)?.policies.resync;
    ensure!(
        limits.bytes_per_second.map(NonZeroU64::get) == Some(bytes_per_sec),
        "{} has no section of a datastore",
        path.display()
    );
    Ok(())
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
