//! Readers of single values: from TOML to the types of a configuration.
//!
//! A refusal of a reader names cause and cure. No reader touches the disk.

use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use lockstep_driver::config::PeerAddress;
use lockstep_driver::config::settings::NumberSetting;
use lockstep_link::Fingerprint;
use lockstep_types::DatastoreUuid;
use lockstep_types::settings::Choice;
use toml::de::DeValue;

use super::node_config::{NAME_BYTES_MAX, SOCKET_PATH_BYTES_MAX};
use super::problem::Rejection;
use super::section::nearest;

type Read<T> = Result<T, Rejection>;

pub(super) fn text<'v>(value: &'v DeValue<'_>) -> Read<&'v str> {
    value.as_str().ok_or_else(|| {
        Rejection::new(
            format!(
                "this must be a string, but is {}",
                article(value.type_str())
            ),
            "put the value in double quotes",
        )
    })
}

fn article(kind: &str) -> String {
    let vowel = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

/// Reads a name of a node or datastore.
pub(super) fn name(value: &DeValue<'_>) -> Read<String> {
    let name = text(value)?;
    if is_name(name) {
        return Ok(name.to_owned());
    }
    Err(Rejection::new(
        format!("{name:?} cannot be a name"),
        name_rule(),
    ))
}

/// Whether `name` is a valid name of a node or datastore.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.len() <= NAME_BYTES_MAX
        && name.chars().all(plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

pub(super) fn name_rule() -> String {
    format!(
        "use 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`, with a letter or digit first"
    )
}

/// Reads an absolute path, without doubled and trailing slashes.
pub(super) fn path(value: &DeValue<'_>) -> Read<PathBuf> {
    let written = text(value)?;
    let path = Path::new(written);
    if !path.is_absolute() {
        return Err(Rejection::new(
            format!("{written:?} is not an absolute path"),
            "write the whole path, beginning with `/`",
        ));
    }
    let climbs = path.components().any(|part| part == Component::ParentDir);
    if climbs || written.contains('\0') {
        return Err(Rejection::new(
            format!("{written:?} holds `..` or a NUL character"),
            "write the path directly, without them",
        ));
    }
    Ok(path.components().collect())
}

/// Reads a path that is short enough for a Unix socket.
pub(super) fn socket_path(value: &DeValue<'_>) -> Read<PathBuf> {
    let path = path(value)?;
    let length = path.as_os_str().len();
    if length <= SOCKET_PATH_BYTES_MAX {
        return Ok(path);
    }
    Err(Rejection::new(
        format!(
            "the path has {length} bytes, and Linux binds sockets up to {SOCKET_PATH_BYTES_MAX}"
        ),
        "choose a shorter one, such as \"/run/lockstep/node.sock\"",
    ))
}

/// Reads the UUID of a datastore.
pub(super) fn uuid(value: &DeValue<'_>) -> Read<DatastoreUuid> {
    let written = text(value)?;
    let cure = "copy the uuid that `lockstep init` printed; it is the same on both nodes";
    let uuid = DatastoreUuid::from_str(written)
        .map_err(|error| Rejection::new(format!("{written:?} is not a UUID: {error}"), cure))?;
    if uuid.as_bytes() == &[0; 16] {
        return Err(Rejection::new(
            "a UUID of zeros identifies no datastore",
            cure,
        ));
    }
    Ok(uuid)
}

/// Reads an address to listen on.
pub(super) fn listen_address(value: &DeValue<'_>) -> Read<SocketAddr> {
    let written = text(value)?;
    let address = SocketAddr::from_str(written).map_err(|_| {
        Rejection::new(
            format!("{written:?} is not an address with a port"),
            "write address:port of this server, such as \"10.0.0.1:7400\" or \"[::]:7400\"",
        )
    })?;
    if address.port() == 0 {
        return Err(Rejection::new(
            "port 0 cannot be reached",
            "choose a port, such as 7400",
        ));
    }
    Ok(address)
}

/// Reads the address of a peer.
pub(super) fn peer_address(value: &DeValue<'_>) -> Read<PeerAddress> {
    let written = text(value)?;
    PeerAddress::from_str(written).map_err(|error| {
        Rejection::new(
            error.to_string(),
            "write the `listen` of the other node, such as \"10.0.0.2:7400\"",
        )
    })
}

/// Reads the fingerprint of a peer's certificate.
pub(super) fn fingerprint(value: &DeValue<'_>) -> Read<Fingerprint> {
    let written = text(value)?;
    Fingerprint::from_str(written).map_err(|error| {
        Rejection::new(
            error.to_string(),
            "copy the fingerprint that `lockstep init` printed for that node or witness",
        )
    })
}

/// Reads one of the words of a setting.
pub(super) fn choice<T: Choice>(value: &DeValue<'_>) -> Read<T> {
    let words: Vec<&str> = T::ALL.iter().map(|(_, word)| *word).collect();
    let cure = format!("write {}", quoted(&words));
    let Some(written) = value.as_str() else {
        let cause = format!(
            "this must be a word in quotes, but is {}",
            article(value.type_str())
        );
        return Err(Rejection::new(cause, cure));
    };
    T::find(written).ok_or_else(|| {
        let near = nearest(written, &words);
        let hint = near
            .map(|word| format!("; did you mean {word:?}?"))
            .unwrap_or_default();
        Rejection::new(
            format!("{written:?} is not a valid value for this key"),
            cure + &hint,
        )
    })
}

fn quoted(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    quoted.join(" or ")
}

/// Reads a whole number within the bounds of a setting, both included. Zero is one if the setting can be off.
pub(super) fn number(value: &DeValue<'_>, setting: &NumberSetting) -> Read<u64> {
    let (least, most) = (setting.least, setting.most);
    let cure = || {
        let off = if setting.has_off {
            ", or 0 for none"
        } else {
            ""
        };
        format!("write a whole number from {least} to {most}, without quotes{off}")
    };
    let Some(written) = value.as_integer() else {
        let cause = format!(
            "this must be a whole number, but is {}",
            article(value.type_str())
        );
        return Err(Rejection::new(cause, cure()));
    };
    let parsed = i128::from_str_radix(written.as_str(), written.radix());
    match parsed.map(u64::try_from) {
        Ok(Ok(number)) if (least..=most).contains(&number) => Ok(number),
        Ok(Ok(0)) if setting.has_off => Ok(0),
        _ => Err(Rejection::new(
            format!("{} is out of bounds", written.as_str()),
            cure(),
        )),
    }
}

/// Reads a number of milliseconds within bounds.
pub(super) fn millis(value: &DeValue<'_>, setting: &NumberSetting) -> Read<Duration> {
    number(value, setting).map(Duration::from_millis)
}

/// Reads a number of milliseconds within bounds, or zero: then there is no limit.
pub(super) fn millis_or_off(
    value: &DeValue<'_>,
    setting: &NumberSetting,
) -> Read<Option<Duration>> {
    let millis = number(value, setting)?;
    Ok((millis > 0).then(|| Duration::from_millis(millis)))
}

/// Reads a count within bounds.
pub(super) fn count(value: &DeValue<'_>, setting: &NumberSetting) -> Read<usize> {
    number(value, setting).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
}
