//! The network of a playground: the proxies between its nodes, and between each node and the witness.
//!
//! A playground without a delay, and without nodes that can be cut off, has no proxies.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use lockstep_delay_proxy::DelayProxy;

/// A way through the network that may have a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From a node to the other one.
    Nodes,
    /// From the node with this number to the witness.
    Witness(usize),
}

/// The proxies of a playground, which work until this is dropped.
pub(crate) struct PlaygroundNetwork {
    proxies: Vec<(Way, DelayProxy)>,
}

impl PlaygroundNetwork {
    /// Starts a proxy on each way whose first address is not its second one. The proxy listens at the first address, and
    /// passes all on to the second, with this delay there and back together.
    pub(crate) fn start(
        ways: impl Iterator<Item = (Way, SocketAddr, SocketAddr)>,
        round_trip: Duration,
    ) -> Result<Self> {
        let with_proxy = ways.filter(|(_, from, to)| from != to);
        let proxies = with_proxy.map(|(way, from, to)| {
            let proxy = DelayProxy::start(from, to, round_trip, None);
            let proxy = proxy.with_context(|| format!("cannot start the proxy before {to}"))?;
            Ok((way, proxy))
        });
        Ok(Self {
            proxies: proxies.collect::<Result<_>>()?,
        })
    }

    /// Cuts the node with this number off, or ends that: no byte passes between the node and the others, while every
    /// connection stays up. So no end of the network hears of the cut.
    pub(crate) fn isolate(&self, node: usize, is_cut: bool) {
        for (way, proxy) in &self.proxies {
            if [Way::Nodes, Way::Witness(node)].contains(way) {
                proxy.stall(is_cut);
            }
        }
    }

    /// The number of proxies.
    #[cfg(test)]
    pub(crate) fn proxies(&self) -> usize {
        self.proxies.len()
    }
}
