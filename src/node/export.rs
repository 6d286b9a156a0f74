//! The export of a snapshot by a running node: as a plain tree, or as a seed.

use lockstep_driver::Datastore;
use lockstep_driver::report::CommandFailure;
use lockstep_fs::export::{ExportError, ExportPlaces, ExportSummary, ExportWatch, export_open};
use lockstep_fs::seed::{SeedOrder, SeedSummary, WatchSeed, export_seed};

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
    written.map_err(|error| failed(name, &question.at, &error))
}

/// Writes a seed of a snapshot of a datastore. Clients of the datastore are served meanwhile.
pub(super) fn write_seed(
    datastore: &Datastore,
    question: &ExportQuestion,
    watch: &mut WatchSeed<'_>,
) -> Result<SeedSummary, CommandFailure> {
    question.dest.check()?;
    let order = SeedOrder {
        at: &question.at,
        dest: &question.dest.path,
        origin: datastore.seed_origin()?,
    };
    let config = datastore.config().current();
    let store = (config.store.as_path(), datastore.store());
    let name = datastore.name();
    tracing::info!(datastore = name, at = question.at, dest = %question.dest.path.display(), "the export of a seed begins");
    let written = export_seed(store, order, watch);
    written.map_err(|error| failed(name, &question.at, &error))
}

fn failed(name: &str, at: &str, error: &ExportError) -> CommandFailure {
    tracing::warn!(datastore = name, at, %error, "an export has failed");
    CommandFailure::new(
        error.to_string(),
        format!("see the snapshots of this node with `lockstep snapshot list {name}`"),
    )
}
