//! The nodes' use of TLS: version 1.3 only, both ends authenticated, certificates pinned.
//!
//! A node accepts a certificate if its fingerprint is pinned and its key has signed the handshake. Names, dates and
//! issuers do not count. No tickets, no resumption, no early data: each connection authenticates both ends again. The
//! protocol name (ALPN) says whether the ends encrypt or only authenticate. So the handshake protects this setting, and
//! a mismatch fails before any frame.

use std::collections::BTreeSet;
use std::sync::Arc;

use lockstep_sums::{SumKey, SumSecret};
use lockstep_types::Encryption;
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConfig, ServerConnection,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::sums::{FrameKey, SumMethod};

/// The byte with which the server accepts the client.
pub const ACCEPTED: u8 = b'K';

/// The protocol name of connections with this setting.
pub(crate) const fn protocol(encryption: Encryption) -> &'static [u8] {
    match encryption {
        Encryption::On => b"lockstep/3",
        Encryption::Off => b"lockstep-clear/3",
    }
}

/// The certificates that one handshake accepts, and the certificate that the peer presents.
#[derive(Debug)]
pub(crate) struct Pins {
    accepted: BTreeSet<Fingerprint>,
    presented: Mutex<Option<Fingerprint>>,
    provider: Arc<CryptoProvider>,
}

impl Pins {
    pub(crate) fn new(accepted: BTreeSet<Fingerprint>) -> Arc<Self> {
        Arc::new(Self {
            accepted,
            presented: Mutex::new(None),
            provider: provider(),
        })
    }

    /// The certificate that the peer presented, accepted or not. Trust it only after the handshake has succeeded.
    pub(crate) fn presented(&self) -> Option<Fingerprint> {
        *self.presented.lock()
    }

    /// The accepted fingerprints, for an error message.
    pub(crate) fn expected(&self) -> String {
        let mut texts = self.accepted.iter().map(ToString::to_string);
        let first = texts.next().unwrap_or_else(|| "no peer".into());
        texts.fold(first, |all, next| all + ", " + &next)
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let fingerprint = Fingerprint::of_certificate(certificate);
        *self.presented.lock() = Some(fingerprint);
        if self.accepted.contains(&fingerprint) {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    /// TLS 1.2 is never negotiated. If it were, this function would still verify the signature.
    fn verify_old(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Pins {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_old(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Pins {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_old(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

/// Presents the node's certificate to a client, and remembers the client's protocol of Lockstep, if any.
#[derive(Debug)]
pub(crate) struct Presenter {
    key: Arc<CertifiedKey>,
    offered: Mutex<Option<Encryption>>,
}

impl Presenter {
    pub(crate) fn new(identity: &Identity) -> Arc<Self> {
        Arc::new(Self {
            key: identity.certified_key(),
            offered: Mutex::new(None),
        })
    }

    /// The client's offer, in this node's words: any program can connect, and an error message shows the offer to the
    /// operator.
    pub(crate) fn offered(&self) -> String {
        match *self.offered.lock() {
            Some(encryption) => format!("it is {encryption} on the peer"),
            None => "the peer offers no protocol of this version".into(),
        }
    }
}

impl ResolvesServerCert for Presenter {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(mut names) = hello.alpn() {
            let known = [Encryption::On, Encryption::Off];
            let known_as = |name| known.into_iter().find(|known| protocol(*known) == name);
            *self.offered.lock() = names.find_map(known_as);
        }
        Some(Arc::clone(&self.key))
    }
}

/// The client's end of a TLS handshake.
pub(crate) fn client(
    identity: &Identity,
    pins: &Arc<Pins>,
    encryption: Encryption,
) -> Result<ClientConnection, Error> {
    let config = client_config(identity, pins, protocol(encryption))?;
    ClientConnection::new(Arc::new(config), server_name()?)
}

/// The client's configuration for one connection of this protocol name.
pub(crate) fn client_config(
    identity: &Identity,
    pins: &Arc<Pins>,
    protocol: &[u8],
) -> Result<ClientConfig, Error> {
    let key = SingleCertAndKey::from(identity.certified_key());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&pins.provider))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(pins) as Arc<dyn ServerCertVerifier>)
        .with_client_cert_resolver(Arc::new(key));
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// The name is neither sent nor checked: the pinned fingerprint identifies the peer.
pub(crate) fn server_name() -> Result<ServerName<'static>, Error> {
    ServerName::try_from("lockstep").map_err(|_| Error::General("name".into()))
}

/// The server's end of a TLS handshake.
pub(crate) fn server(
    presenter: &Arc<Presenter>,
    pins: &Arc<Pins>,
    encryption: Encryption,
) -> Result<ServerConnection, Error> {
    let config = server_config(
        Arc::<Presenter>::clone(presenter),
        pins,
        protocol(encryption),
    )?;
    ServerConnection::new(Arc::new(config))
}

/// The server's configuration for one connection of this protocol name.
pub(crate) fn server_config(
    presenter: Arc<dyn ResolvesServerCert>,
    pins: &Arc<Pins>,
    protocol: &[u8],
) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&pins.provider))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::clone(pins) as Arc<dyn ClientCertVerifier>)
        .with_cert_resolver(presenter);
    config.alpn_protocols = vec![protocol.to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(config)
}

/// The functions of the sums of one connection, one for each direction.
pub(crate) struct SumMethods {
    pub(crate) from_client: SumMethod,
    pub(crate) from_server: SumMethod,
}

impl SumMethods {
    /// Derives the keys of the sums from a completed handshake (RFC 8446, section 7.5).
    pub(crate) fn derive(tls: &rustls::Connection, encryption: Encryption) -> Result<Self, Error> {
        let export = |label: &[u8]| tls.export_keying_material([0; 32], label, None);
        let clear = |label: &[u8]| export(label).map(|key| SumMethod::Keyed(FrameKey::new(key)));
        if encryption == Encryption::Off {
            return Ok(Self {
                from_client: clear(b"EXPORTER-lockstep-clear/3 from client")?,
                from_server: clear(b"EXPORTER-lockstep-clear/3 from server")?,
            });
        }
        let secret = SumSecret::new(export(b"EXPORTER-lockstep/3 sums of blocks")?);
        let key = Arc::new(SumKey::new(&secret));
        Ok(Self {
            from_client: SumMethod::Blocks(Arc::clone(&key)),
            from_server: SumMethod::Blocks(key),
        })
    }
}

/// aws-lc (docs/adr/0005), with the cheapest of its strong suites first: every write passes through the suite.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..default_provider()
    })
}
