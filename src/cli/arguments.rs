//! Arguments that several commands have: the configuration and the running node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_driver::RESTART_WITHOUT_LEASE;
use lockstep_link::Identity;
use lockstep_witness::WitnessOperator;
use lockstepfs::config::{self, DatastoreConfig, NodeConfig, WitnessServerConfig, settings};

/// Default path of a node's configuration.
pub(super) const CONFIG_DEFAULT: &str = "/etc/lockstep/node.toml";

/// The configuration file.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// Configuration file of the node
    #[arg(long, value_name = "FILE", default_value = CONFIG_DEFAULT)]
    pub(super) config: PathBuf,
}

impl ConfigArgs {
    pub(super) fn load(&self) -> Result<NodeConfig> {
        Ok(config::load(&self.config)?)
    }
}

/// Default path of a witness's configuration.
const WITNESS_CONFIG_DEFAULT: &str = "/etc/lockstep/witness.toml";

/// The configuration file of a witness.
#[derive(Debug, Args)]
pub(super) struct WitnessConfigArgs {
    /// Configuration file of the witness
    #[arg(long, value_name = "FILE", default_value = WITNESS_CONFIG_DEFAULT)]
    pub(super) config: PathBuf,
}

impl WitnessConfigArgs {
    pub(super) fn load(&self) -> Result<WitnessServerConfig> {
        Ok(config::load_witness(&self.config)?)
    }

    /// Returns the configuration, and its operator's connection with the running witness.
    pub(super) fn operator(&self) -> Result<(WitnessServerConfig, WitnessOperator)> {
        let config = self.load()?;
        let identity = Identity::load(&config.identity)?;
        let operator = WitnessOperator::new(config.listen, &identity, WITNESS_CALL_LIMIT)?;
        Ok((config, operator))
    }
}

/// Limit of a call to the witness on this server.
const WITNESS_CALL_LIMIT: Duration = Duration::from_secs(10);

/// Returns the datastore of that name. The error lists the existing names.
pub(super) fn find_datastore<'a>(
    config: &'a NodeConfig,
    name: &str,
) -> Result<&'a DatastoreConfig> {
    config.datastore(name).with_context(|| {
        let names: Vec<_> = config
            .datastores
            .iter()
            .map(|store| store.name.as_str())
            .collect();
        format!(
            "there is no datastore {name:?}\n  cure: name one of: {}",
            names.join(", ")
        )
    })
}

/// The running node that a command asks.
#[derive(Debug, Args)]
pub(super) struct RunningNodeArgs {
    #[command(flatten)]
    config: ConfigArgs,

    /// Control socket of the node, instead of the socket in its configuration
    #[arg(long, value_name = "SOCKET", conflicts_with = "config")]
    control: Option<PathBuf>,
}

impl RunningNodeArgs {
    /// The longest time for which a restart of the node's process may be no failover.
    pub(super) fn longest_restart(&self, name: &str) -> Duration {
        let longest = Duration::from_millis(settings::FAILOVER_AFTER.most);
        if self.control.is_some() {
            return longest;
        }
        let config = self.config.load().ok();
        let datastore = config.as_ref().and_then(|config| config.datastore(name));
        datastore.map_or(longest, |datastore| {
            let takeover = datastore.failover_after.unwrap_or_default();
            takeover.max(RESTART_WITHOUT_LEASE)
        })
    }

    pub(super) fn socket(&self) -> Result<PathBuf> {
        match &self.control {
            Some(socket) => Ok(socket.clone()),
            None => Ok(self.config.load()?.control),
        }
    }
}

/// Makes a path of the command line absolute, without access to the disk.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    Ok(std::path::absolute(path)?.components().collect())
}
