//! The identity of a node: a key pair, a self-signed certificate, and its fingerprint.
//!
//! An identity is two PEM files in one directory: `node.key` (PKCS#8, mode 0600) and `node.crt`. The certificate
//! carries the public key and no trust: names and dates in it mean nothing, and peers pin its fingerprint.
//!
//! Invariants: the private key is never shown, logged, or written elsewhere. A key file that other users can read is
//! refused.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs as provider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::LinkError;
use crate::fingerprint::Fingerprint;

/// Name of the file with the private key.
pub const KEY_FILE: &str = "node.key";

/// Name of the file with the certificate.
pub const CERTIFICATE_FILE: &str = "node.crt";

/// Most bytes read of an identity file; valid files have a few hundred bytes.
const IDENTITY_FILE_BYTES_MAX: u64 = 64 << 10;

/// A node's key pair and certificate. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.fingerprint)
    }
}

impl Identity {
    /// Creates a new identity and stores it in `directory`, which must exist and have no identity. People read `name`
    /// in the certificate; 1 to 63 letters, digits, `-`, `_` and `.`.
    ///
    /// # Errors
    /// [`LinkError::IdentityExists`] if the directory has an identity. Any error leaves no new file.
    pub fn create(directory: &Path, name: &str) -> Result<Self, LinkError> {
        let new = NewIdentity::new(name)?;
        let identity = new.identity(directory)?;
        let key = write_new(&directory.join(KEY_FILE), 0o600, &new.key_pem)?;
        let certificate = write_new(
            &directory.join(CERTIFICATE_FILE),
            0o644,
            &new.certificate_pem,
        )?;
        sync_directory(directory)?;
        key.keep();
        certificate.keep();
        Ok(identity)
    }

    /// Creates an identity in memory only.
    ///
    /// # Errors
    /// [`LinkError::IdentityCreation`] for a name that no certificate can carry.
    pub fn ephemeral(name: &str) -> Result<Self, LinkError> {
        NewIdentity::new(name)?.identity(Path::new("(memory)"))
    }

    /// Loads the identity from `directory`.
    ///
    /// # Errors
    /// The `Identity…` errors, which name the file, the cause and the cure.
    pub fn load(directory: &Path) -> Result<Self, LinkError> {
        let key_path = directory.join(KEY_FILE);
        let key_pem = read_private(&key_path)?;
        let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|e| invalid(&key_path, &e))?;
        let certificate_path = directory.join(CERTIFICATE_FILE);
        let pem = read_bounded(&certificate_path, open(&certificate_path)?)?;
        let certificate =
            CertificateDer::from_pem_slice(&pem).map_err(|e| invalid(&certificate_path, &e))?;
        Self::from_parts(directory, certificate, key)
    }

    /// The fingerprint that peers pin.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Key and certificate in the form that TLS needs.
    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.key)
    }

    /// Checks that certificate and key belong together.
    fn from_parts(
        directory: &Path,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, LinkError> {
        let fingerprint = Fingerprint::of_certificate(&certificate);
        let key = CertifiedKey::from_der(vec![certificate], key, &provider::default_provider())
            .map_err(|e| invalid(&directory.join(KEY_FILE), &e))?;
        Ok(Self {
            key: Arc::new(key),
            fingerprint,
        })
    }
}

/// A new key pair and certificate, as PEM.
struct NewIdentity {
    key_pem: String,
    certificate_pem: String,
    certificate: CertificateDer<'static>,
}

impl NewIdentity {
    fn new(name: &str) -> Result<Self, LinkError> {
        let make = || {
            let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
            let mut params = rcgen::CertificateParams::new(vec![name.to_owned()])?;
            params.distinguished_name = rcgen::DistinguishedName::new();
            params
                .distinguished_name
                .push(rcgen::DnType::CommonName, name);
            let certificate = params.self_signed(&key)?;
            Ok((key, certificate))
        };
        let (key, certificate) = make().map_err(|source| LinkError::IdentityCreation {
            name: name.into(),
            source,
        })?;
        Ok(Self {
            key_pem: key.serialize_pem(),
            certificate_pem: certificate.pem(),
            certificate: certificate.der().clone(),
        })
    }

    fn identity(&self, directory: &Path) -> Result<Identity, LinkError> {
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())
            .map_err(|e| invalid(&directory.join(KEY_FILE), &e))?;
        Identity::from_parts(directory, self.certificate.clone(), key)
    }
}

/// A new file of an identity. Removes the file when dropped, unless kept: half an identity must not stay.
struct IdentityFile(Option<PathBuf>);

impl IdentityFile {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for IdentityFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // A failure cannot be handled better: `create` reports the first error.
            let _ = fs::remove_file(path);
        }
    }
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<IdentityFile, LinkError> {
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path);
    let mut file = opened.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => LinkError::IdentityExists { path: path.into() },
        _ => file_error("create", path, source),
    })?;
    let guard = IdentityFile(Some(path.into()));
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|source| file_error("write", path, source))?;
    Ok(guard)
}

fn sync_directory(directory: &Path) -> Result<(), LinkError> {
    File::open(directory)
        .and_then(|opened| opened.sync_all())
        .map_err(|source| file_error("sync", directory, source))
}

/// Reads a file. Refuses a file that other users than its owner can read.
fn read_private(path: &Path) -> Result<Vec<u8>, LinkError> {
    let file = open(path)?;
    let metadata = file.metadata();
    let mode = metadata
        .map_err(|source| file_error("examine", path, source))?
        .permissions()
        .mode()
        & 0o7777;
    if mode & 0o077 != 0 {
        return Err(LinkError::IdentityExposed {
            path: path.into(),
            mode,
        });
    }
    read_bounded(path, file)
}

fn open(path: &Path) -> Result<File, LinkError> {
    File::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => LinkError::IdentityMissing { path: path.into() },
        _ => file_error("open", path, source),
    })
}

fn read_bounded(path: &Path, file: File) -> Result<Vec<u8>, LinkError> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(
        &mut io::Read::take(file, IDENTITY_FILE_BYTES_MAX),
        &mut bytes,
    )
    .map_err(|source| file_error("read", path, source))?;
    Ok(bytes)
}

fn file_error(operation: &'static str, path: &Path, source: io::Error) -> LinkError {
    LinkError::IdentityFile {
        operation,
        path: path.into(),
        source,
    }
}

fn invalid(path: &Path, reason: &dyn fmt::Display) -> LinkError {
    LinkError::IdentityInvalid {
        path: path.into(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_identity_loads_again() {
        let directory = tempfile::tempdir().unwrap();
        let made = Identity::create(directory.path(), "alpha").unwrap();
        let loaded = Identity::load(directory.path()).unwrap();
        assert_eq!(made.fingerprint(), loaded.fingerprint());
        let metadata = fs::metadata(directory.path().join(KEY_FILE)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        Identity::create(directory.path(), "alpha").unwrap();
        let again = Identity::create(directory.path(), "alpha");
        assert!(matches!(again, Err(LinkError::IdentityExists { .. })));
        Identity::load(directory.path()).unwrap();
    }

    #[test]
    fn a_failed_creation_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(CERTIFICATE_FILE), "in the way").unwrap();
        Identity::create(directory.path(), "alpha").unwrap_err();
        assert!(!directory.path().join(KEY_FILE).exists());
    }

    #[test]
    fn exposed_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        Identity::create(directory.path(), "alpha").unwrap();
        let key = directory.path().join(KEY_FILE);
        for mode in [0o640, 0o604, 0o660] {
            fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
            let error = Identity::load(directory.path()).unwrap_err();
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn missing_foreign_and_broken_files_are_refused() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let missing = Identity::load(one.path());
        assert!(matches!(missing, Err(LinkError::IdentityMissing { .. })));
        Identity::create(one.path(), "one").unwrap();
        Identity::create(two.path(), "two").unwrap();
        let certificate = one.path().join(CERTIFICATE_FILE);
        fs::copy(two.path().join(CERTIFICATE_FILE), &certificate).unwrap();
        let foreign = Identity::load(one.path());
        assert!(matches!(foreign, Err(LinkError::IdentityInvalid { .. })));
        fs::write(&certificate, "-----BEGIN CERTIFICATE-----\ngarbage").unwrap();
        let broken = Identity::load(one.path());
        assert!(matches!(broken, Err(LinkError::IdentityInvalid { .. })));
    }
}
