//! Addresses of a witness: a host with a port, and an endpoint of etcd.
//!
//! Parsing resolves no name. A client resolves the name at each connection, as an address may change.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use tonic::transport::{Endpoint, Uri};

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is not a host with a port.
    #[error("{0:?} is not HOST:PORT, such as \"10.0.0.3:7400\" or \"witness.example:7400\"")]
    Address(String),
    /// The address stands for every address of a server.
    #[error("{0:?} is the address of no server")]
    Unspecified(String),
    /// The text is not an endpoint of etcd.
    #[error("{0:?} is not an endpoint of etcd, such as \"http://10.0.0.3:2379\"")]
    Endpoint(String),
    /// The endpoint asks for TLS.
    #[error(
        "{0:?} asks for TLS, which lockstep cannot speak with etcd yet: write http://, over a private network or a tunnel"
    )]
    EndpointTls(String),
}

/// The address of an own witness: host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessAddress(String);

impl FromStr for WitnessAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError::Address(text.to_owned());
        let number = text.parse::<SocketAddr>();
        if number.is_ok_and(|number| number.ip().to_canonical().is_unspecified()) {
            return Err(AddressError::Unspecified(text.to_owned()));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let is_numeric = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let is_host = if let Some(inner) = is_numeric {
            inner.parse::<std::net::Ipv6Addr>().is_ok()
        } else {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !host.is_empty() && host.chars().all(plain)
        };
        match port.parse::<u16>() {
            Ok(1..) if is_host && port.chars().all(|c| c.is_ascii_digit()) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(wrong()),
        }
    }
}

impl From<std::net::SocketAddr> for WitnessAddress {
    fn from(address: std::net::SocketAddr) -> Self {
        Self(address.to_string())
    }
}

impl fmt::Display for WitnessAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An endpoint of etcd: a URL with scheme `http`, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdEndpoint(Uri);

impl FromStr for EtcdEndpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError::Endpoint(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let has_port = uri.port_u16().is_some_and(|port| port > 0);
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        match uri.scheme_str() {
            Some("http") if has_port && is_bare => Ok(Self(uri)),
            Some("https") => Err(AddressError::EndpointTls(text.to_owned())),
            _ => Err(wrong()),
        }
    }
}

impl EtcdEndpoint {
    /// The endpoint for a client.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::from(self.0.clone())
    }
}

impl fmt::Display for EtcdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.to_string().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_with_a_port() {
        for good in ["10.0.0.3:7400", "[::1]:1", "witness.example:65535", "a_b:7"] {
            assert_eq!(good.parse::<WitnessAddress>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            ":1",
            "a",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "::1:7",
            "[a]:1",
            "a b:1",
            "http://a:1",
        ] {
            let error = bad.parse::<WitnessAddress>().unwrap_err();
            assert_eq!(error, AddressError::Address(bad.to_owned()));
        }
        for of_none in ["0.0.0.0:7400", "[::]:7400", "[::ffff:0.0.0.0]:7400"] {
            let error = of_none.parse::<WitnessAddress>().unwrap_err();
            assert_eq!(error, AddressError::Unspecified(of_none.to_owned()));
        }
    }

    #[test]
    fn an_endpoint_is_a_url_with_a_port() {
        for good in [
            "http://10.0.0.3:2379",
            "http://[::1]:2379",
            "http://etcd.example:1",
        ] {
            assert_eq!(good.parse::<EtcdEndpoint>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "10.0.0.3:2379",
            "http://a",
            "http://a:0",
            "ftp://a:1",
            "http://a:1/b",
            "http://a:1?b",
        ] {
            let error = bad.parse::<EtcdEndpoint>().unwrap_err();
            assert_eq!(error, AddressError::Endpoint(bad.to_owned()));
        }
        let error = "https://a:1".parse::<EtcdEndpoint>().unwrap_err();
        assert!(error.to_string().contains("http://"), "{error}");
    }
}
