//! Two nodes and the connection between them.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_link::{Connection, Fingerprint, Identity, LinkError, LinkOptions, accept, dial};
use lockstep_types::Encryption;

pub const BOTH: [Encryption; 2] = [Encryption::On, Encryption::Off];

pub fn options(encryption: Encryption) -> LinkOptions {
    LinkOptions {
        encryption,
        greeting_timeout: Duration::from_secs(60),
        ..LinkOptions::default()
    }
}

/// A node that accepts one client.
pub struct Listening {
    pub address: SocketAddr,
    accepting: JoinHandle<Result<Connection, LinkError>>,
}

impl Listening {
    pub fn start(identity: &Identity, pinned: Fingerprint, options: LinkOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let identity = identity.clone();
        let accepting = thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            accept(socket, &identity, &BTreeSet::from([pinned]), &options)
        });
        Self { address, accepting }
    }

    pub fn outcome(self) -> Result<Connection, LinkError> {
        self.accepting.join().unwrap()
    }
}

pub struct Nodes {
    pub alpha: Identity,
    pub beta: Identity,
}

impl Nodes {
    pub fn new() -> Self {
        Self {
            alpha: Identity::ephemeral("alpha").unwrap(),
            beta: Identity::ephemeral("beta").unwrap(),
        }
    }

    /// Alpha's and beta's end of a connection.
    pub fn connect(&self, options: LinkOptions) -> (Connection, Connection) {
        let beta = Listening::start(&self.beta, self.alpha.fingerprint(), options);
        let alpha = dial(beta.address, &self.alpha, self.beta.fingerprint(), &options);
        (alpha.unwrap(), beta.outcome().unwrap())
    }
}
