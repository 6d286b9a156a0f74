//! The process of a witness: it answers nodes until a signal stops it.
//!
//! A witness whose disk fails ends with an error, so that its service manager starts it again: the start checks the
//! disk.

use std::time::Duration;

use lockstep_link::{Identity, LinkError};
use lockstep_witness::{
    WitnessServer, WitnessServerError, WitnessServerOptions, WitnessStore, WitnessStoreError,
};

use crate::config::WitnessServerConfig;
use crate::service_manager::ServiceManager;
use crate::signals::ShutdownRequests;

/// Pause between two looks for a failure.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Why a witness could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum WitnessRunError {
    /// The identity of the witness cannot be used.
    #[error(transparent)]
    Identity(#[from] LinkError),
    /// The records cannot be used.
    #[error(transparent)]
    Store(#[from] WitnessStoreError),
    /// The server could not start.
    #[error(transparent)]
    Server(#[from] WitnessServerError),
    /// The system refused to report signals.
    #[error(
        "cannot handle signals: {0}\n  cure: check the limits of the process and the free memory"
    )]
    Signals(#[from] std::io::Error),
    /// A node of the configuration is the witness itself.
    #[error(
        "the node {name:?} has the fingerprint of this witness\n  \
         cure: write the fingerprint that `lockstep init` printed on that node; a witness beside a node on one server \
         breaks no tie"
    )]
    OwnNode {
        /// Name of the node.
        name: String,
    },
    /// The witness answers nodes no more.
    #[error("the witness has failed: {failure}")]
    Failed {
        /// The cause, with the cure.
        failure: String,
    },
}

/// Runs a witness until SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// A [`WitnessRunError`] if the witness could not start, or had to stop.
pub fn run(config: &WitnessServerConfig) -> Result<(), WitnessRunError> {
    let manager = ServiceManager::from_environment();
    let outcome = run_until_stopped(config, &manager);
    if let Err(error) = &outcome {
        tracing::error!(%error, "stopping");
        manager.status(&error.to_string());
    }
    outcome
}

fn run_until_stopped(
    config: &WitnessServerConfig,
    manager: &ServiceManager,
) -> Result<(), WitnessRunError> {
    let mut requests = ShutdownRequests::new()?;
    let identity = Identity::load(&config.identity)?;
    if let Some(name) = config.node_name(identity.fingerprint()) {
        let name = name.to_owned();
        return Err(WitnessRunError::OwnNode { name });
    }
    let store = WitnessStore::open(&config.store)?;
    let (id, datastores) = (store.id(), store.list()?.len());
    let options = WitnessServerOptions {
        identity,
        listen: config.listen,
        nodes: config.nodes.iter().map(|node| node.fingerprint).collect(),
    };
    let server = WitnessServer::start(options, store)?;
    tracing::info!(address = %server.address(), store = %id, datastores, "running");
    manager.ready(&format!("answering on {}", server.address()));
    loop {
        if let Some(failure) = server.failure() {
            let failure = failure.to_owned();
            return Err(WitnessRunError::Failed { failure });
        }
        if let Some(signal) = requests.wait(Some(LOOK_INTERVAL)) {
            tracing::info!(signal, "stopping");
            break;
        }
    }
    manager.stopping();
    drop(server);
    tracing::info!("stopped");
    Ok(())
}
