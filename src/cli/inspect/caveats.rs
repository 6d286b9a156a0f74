//! The warnings about the copy in the store of a stopped node: the copy may be incomplete or old.

use std::path::Path;

use lockstepfs::config::Role;

use crate::cli::terminal::warn;

/// Prints each reason why the copy in `store` may be incomplete or old. `of` names the copy, if there are several. `role` is that
/// of a store that has none yet.
pub(super) fn warn_of_caveats(of: Option<&str>, store: &Path, role: Role) {
    let caveats = lockstep_driver::caveats(store, role)
        .unwrap_or_else(|error| vec![format!("whether this copy is complete is unknown: {error}")]);
    let of = of.map(|of| format!("{of}: ")).unwrap_or_default();
    for caveat in caveats {
        warn(&format!("WARNING: {of}{caveat}"));
    }
}
