//! Two servers and their processes: the nodes, each on a disk of its own, and the clients.

use lockstep_testbed::chance::Chance;
use lockstep_testbed::server::{self, Server};
use lockstep_testbed::{Settings, Which};

use crate::load::Load;

/// Two servers under load.
pub struct Site {
    // Dropped first: the nodes have files open on the disks.
    pub load: Load,
    pub primary: Server,
    pub secondary: Server,
}

impl Site {
    /// Starts nodes and clients, and waits until all are at work. From now on, the mounts of this thread are in a
    /// namespace of its own.
    pub fn start(settings: Settings, chance: &mut Chance) -> Self {
        server::isolate();
        let (primary, secondary) = (Server::start(), Server::start());
        let environments = [primary.environment(), secondary.environment()];
        Self {
            load: Load::start_on(settings, chance, environments),
            primary,
            secondary,
        }
    }

    /// The server of a node.
    pub fn server(&self, which: Which) -> &Server {
        match which {
            Which::Primary => &self.primary,
            Which::Secondary => &self.secondary,
        }
    }
}
