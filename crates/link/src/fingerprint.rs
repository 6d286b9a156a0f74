//! Fingerprints: the names by which nodes know each other.

use std::fmt;
use std::str::FromStr;

use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use serde::{Deserialize, Serialize};

/// The prefix of a fingerprint's text.
const PREFIX: &str = "SHA256:";

/// SHA-256 of a certificate's DER encoding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint([u8; 32]);

/// A text that is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a fingerprint: write SHA256: and 64 hexadecimal digits, as `lockstep init` \
     prints it"
)]
pub struct FingerprintError {
    /// The text.
    pub text: String,
}

impl Fingerprint {
    /// The fingerprint of a certificate in DER encoding.
    pub fn of_certificate(der: &[u8]) -> Self {
        let Some(suite) = TLS13_AES_128_GCM_SHA256.tls13() else {
            unreachable!("the suite's name says TLS 1.3")
        };
        let mut digest = [0; 32];
        digest.copy_from_slice(suite.common.hash_provider.hash(der).as_ref());
        Self(digest)
    }

    /// The digest of the certificate.
    pub const fn digest(self) -> [u8; 32] {
        self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?.as_bytes();
        let (pairs, []) = digits.as_chunks::<2>() else {
            return None;
        };
        let mut digest = [0; 32];
        if pairs.len() != digest.len() {
            return None;
        }
        for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
            *byte = hex_digit(*high)? << 4 | hex_digit(*low)?;
        }
        Some(Self(digest))
    }
}

fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| value.try_into().ok())
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        Self::parse(text).ok_or_else(|| FingerprintError { text: text.into() })
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = FingerprintError;

    fn try_from(text: String) -> Result<Self, FingerprintError> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_parses_back() {
        let print = Fingerprint::of_certificate(b"abc");
        let text = "SHA256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(print.to_string(), text);
        assert_eq!(text.parse::<Fingerprint>().unwrap(), print);
        let accented = format!("SHA256:{}é", &text[9..]);
        for bad in ["", "SHA256:", &text[7..], &text[..70], &accented] {
            bad.parse::<Fingerprint>().unwrap_err();
        }
    }
}
