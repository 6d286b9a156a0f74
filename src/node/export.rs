//! The export of a snapshot by a running node.

use lockstep_driver::Datastore;
use lockstep_driver::report::CommandFailure;
use lockstep_fs::export::{ExportPlaces, ExportSummary, ExportWatch, export_open};

use crate::control::{ExportPlace, ExportQuestion};

/// Writes a snapshot of a datastore out. Clients of the datastore are served meanwhile.
pub(super) fn write_out(
    datastore: &Datastore,
    question: &ExportQuestion,
    watch: ExportWatch<'_>,
) -> Result<ExportSummary, CommandFailure> {
    question.dest.check()?;
    question
        .manifest
        .as_ref()
        .map_or(Ok(()), ExportPlace::check)?;
    let places = ExportPlaces {
        dest: &question.dest.path,
        manifest: question.manifest.as_ref().map(|it| it.path.as_path()),
    };
    let config = datastore.config().current();
    let store = (config.store.as_path(), datastore.store());
    let name = datastore.name();
    tracing::info!(datastore = name, at = question.at, dest = %question.dest.path.display(), "an export begins");
    let written = export_open(store, &question.at, places, watch);
    written.map_err(|error| {
        tracing::warn!(datastore = name, at = question.at, %error, "an export has failed");
        CommandFailure::new(
            error.to_string(),
            format!("see the snapshots of this node with `lockstep snapshot list {name}`"),
        )
    })
}
