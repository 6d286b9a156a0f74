//! Another configuration for a running datastore.
//!
//! Most readers take a setting from the handle at the moment of use. The core, which reads nothing, gets its settings here.
//! No change of the role happens meanwhile: a session that begins later begins with the new settings.

use super::keeper::RoleKeeper;
use crate::config::settings::Setting;
use crate::config::{ConfigRefused, DatastoreConfig};
use crate::session::build;

impl RoleKeeper {
    /// Puts another configuration in force. Returns the settings that differ from before.
    pub(crate) fn reconfigure(
        &self,
        new: DatastoreConfig,
    ) -> Result<Vec<&'static Setting>, ConfigRefused> {
        let _changing = self.role.changing.acquire(&*self.engine.host);
        let changed = self.engine.config.replace(new)?;
        for setting in &changed {
            let (datastore, key) = (self.engine.name(), setting.key);
            tracing::info!(datastore, key, "a setting has changed");
        }
        let session = self.role.session();
        let core_config = build::core_config(&self.engine);
        session.replication().core.lock().reconfigure(core_config);
        // A shorter limit may be over already.
        session.tick();
        self.engine.wakes.changes.raise();
        self.engine.wakes.tick_work.note();
        Ok(changed)
    }
}
