//! The ends of a primary's service, and the ways by which the other node begins to serve.

use lockstep_driver::report::ServiceStatus;
use lockstep_testbed::Which;
use lockstep_testbed::operator::{await_alone, await_status, change, fail_over, other};
use lockstep_testbed::witness::isolate;
use lockstepfs::config::Role;

use crate::Site;
use crate::postgres::Client;

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An operator gives the role to the other node.
    Planned,
    /// The node of the primary is killed.
    Killed,
    /// The nodes of both are killed, and only that of the secondary comes back.
    BothKilled,
    /// The primary reaches neither the other node nor the witness.
    Isolated,
    /// The node of the primary and its supervisor are suspended, as a virtual machine is.
    Suspended,
}

/// Without a witness an operator promotes.
pub const BY_OPERATOR: [Cause; 2] = [Cause::Planned, Cause::Killed];
/// With a witness nobody does.
pub const BY_WITNESS: [Cause; 5] = [
    Cause::Planned,
    Cause::Killed,
    Cause::Isolated,
    Cause::Suspended,
    Cause::BothKilled,
];

impl Cause {
    /// Ends the service of the primary, whose database has this client.
    pub fn strike(self, site: &mut Site, client: &Client) {
        let primary = site.primary;
        let pair = &mut site.pair;
        match self {
            Self::Planned => {
                fail_over(pair, primary, site.generation);
                // The database goes on for a while where it must not.
                client.await_error();
            }
            Self::Killed => pair.node_mut(primary).kill(),
            Self::BothKilled => {
                pair.node_mut(other(primary)).kill();
                pair.node_mut(primary).kill();
                pair.node_mut(other(primary)).start();
            }
            Self::Isolated => isolate(pair, site.witness.as_ref().unwrap(), primary, true),
            Self::Suspended => pair.node(primary).freeze(),
        }
    }

    /// Whether the database of the primary is killed late: when its node goes on.
    pub fn stops_the_supervisor(self) -> bool {
        self == Self::Suspended
    }

    /// Waits until the node that has not served does.
    pub fn await_takeover(self, site: &Site, which: Which) {
        let node = site.pair.node(which);
        if self == Self::Killed && site.witness.is_none() {
            await_alone(node);
            change(node, "promote", &[]);
        }
        await_status(node, "service by the other node", |status| {
            let service = &status.sync.service;
            status.settings.role == Role::Primary
                && matches!(service, ServiceStatus::Alone | ServiceStatus::Mirrored)
        });
    }

    /// The node that has lost the role comes back.
    pub fn heal(self, site: &mut Site, which: Which) {
        let pair = &mut site.pair;
        match self {
            Self::Planned => {}
            Self::Killed | Self::BothKilled => pair.node_mut(which).start(),
            Self::Isolated => isolate(pair, site.witness.as_ref().unwrap(), which, false),
            Self::Suspended => pair.node(which).thaw(),
        }
    }
}
