//! TLS for connections that carry remote procedure calls: the authentication of the data path, for an asynchronous
//! socket.
//!
//! One [`RpcTls`] serves one connection, so that the certificate that the other end presents belongs to that
//! connection. This file makes no connection and knows no call.
//!
//! In TLS 1.3, a client completes the handshake before the server has checked the client's certificate. So the server
//! sends one byte, [`ACCEPTED`], before the first call, and the client waits for it: the client learns of a refusal
//! by the alert that comes in place of that byte.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use rustls::client::ClientConfig;
use rustls::server::ServerConfig;
use rustls::sign::SingleCertAndKey;
use rustls::{AlertDescription, CertificateError, Error};
use rustls_pki_types::ServerName;

use crate::error::LinkError;
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::tls::{self, Pins};

pub use crate::tls::ACCEPTED;

/// One end of one connection: the configuration of TLS, and the certificate that the other end presents.
#[derive(Debug)]
pub struct RpcTls<C> {
    config: Arc<C>,
    pins: Arc<Pins>,
}

/// Why the ends do not accept each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// This end refuses the presented certificate.
    NotPinned(Fingerprint),
    /// The other end refuses the certificate of this end.
    RefusedByPeer,
    /// The ends have no protocol in common.
    OtherProtocol,
}

impl RpcTls<ClientConfig> {
    /// The client's end. The server's fingerprint must be `server`.
    ///
    /// # Errors
    /// [`LinkError::TlsSetup`] if TLS cannot use this identity.
    pub fn client(
        identity: &Identity,
        server: Fingerprint,
        protocol: &[u8],
    ) -> Result<Self, LinkError> {
        let pins = Pins::new(BTreeSet::from([server]));
        let config = tls::client_config(identity, &pins, protocol).map_err(setup)?;
        Ok(Self {
            config: Arc::new(config),
            pins,
        })
    }

    /// The name of the server for the handshake. It is neither sent nor checked.
    ///
    /// # Errors
    /// [`LinkError::TlsSetup`], never in practice.
    pub fn server_name() -> Result<ServerName<'static>, LinkError> {
        tls::server_name().map_err(setup)
    }
}

impl RpcTls<ServerConfig> {
    /// The server's end. The client's fingerprint must be one of `clients`.
    ///
    /// # Errors
    /// [`LinkError::TlsSetup`] if TLS cannot use this identity.
    pub fn server(
        identity: &Identity,
        clients: &BTreeSet<Fingerprint>,
        protocol: &[u8],
    ) -> Result<Self, LinkError> {
        let pins = Pins::new(clients.clone());
        let key = SingleCertAndKey::from(identity.certified_key());
        let config = tls::server_config(Arc::new(key), &pins, protocol).map_err(setup)?;
        Ok(Self {
            config: Arc::new(config),
            pins,
        })
    }
}

impl<C> RpcTls<C> {
    /// The configuration of TLS for this connection.
    pub fn config(&self) -> Arc<C> {
        Arc::clone(&self.config)
    }

    /// The certificate that the other end presented. It is authenticated only after a handshake that succeeded.
    pub fn presented(&self) -> Option<Fingerprint> {
        self.pins.presented()
    }

    /// Returns why the ends do not accept each other, if that is the cause of a failed handshake.
    pub fn distrust(&self, failure: &io::Error) -> Option<Distrust> {
        let failure = failure.get_ref()?.downcast_ref::<Error>()?;
        match failure {
            Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
                self.presented().map(Distrust::NotPinned)
            }
            Error::AlertReceived(AlertDescription::AccessDenied) => Some(Distrust::RefusedByPeer),
            Error::NoApplicationProtocol
            | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Some(Distrust::OtherProtocol)
            }
            _ => None,
        }
    }
}

fn setup(source: Error) -> LinkError {
    LinkError::TlsSetup { source }
}
