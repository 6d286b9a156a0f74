//! The section `[datastore.witness]`: the witness that a node asks for one datastore.

use std::str::FromStr;

use lockstep_witness::{EtcdEndpoint, WitnessAddress, WitnessConfig};
use toml::de::DeValue;

use super::problem::{Problems, Rejection};
use super::section::{KeyLines, Section};
use super::value;

/// Keys of `[datastore.witness]`.
pub(super) const WITNESS_KEYS: &[&str] = &["address", "fingerprint", "etcd"];

const ADDRESS: &str = "address = \"10.0.0.3:7400\", the `listen` of the witness";
const FINGERPRINT: &str =
    "fingerprint = \"SHA256:…\", as `lockstep init --witness` printed on the witness";

/// Reads the witness of a datastore, if there is a section for it. The result has no witness if it is refused, but always
/// the lines of its keys. `of_datastore`: the keys of the datastore's own section.
pub(super) fn read(
    problems: &mut Problems<'_>,
    datastore: &Section<'_>,
    of_datastore: &[&str],
) -> Option<(Option<WitnessConfig>, KeyLines)> {
    let section = datastore.table(problems, "witness", "[datastore.witness]")?;
    let lines = section.key_lines(problems);
    Some((read_keys(problems, &section, of_datastore), lines))
}

fn read_keys(
    problems: &mut Problems<'_>,
    section: &Section<'_>,
    of_datastore: &[&str],
) -> Option<WitnessConfig> {
    section.refuse_unknown_below(problems, WITNESS_KEYS, ("[[datastore]]", of_datastore));
    if !section.has("etcd") {
        let address = section.required(problems, "address", ADDRESS, address);
        let fingerprint =
            section.required(problems, "fingerprint", FINGERPRINT, value::fingerprint);
        return Some(WitnessConfig::Own {
            address: address?,
            fingerprint: fingerprint?,
        });
    }
    for key in ["address", "fingerprint"] {
        let _none: Option<()> = section
            .read(problems, key, |_| Err(two_witnesses()))
            .value();
    }
    let endpoints = section.required(problems, "etcd", "", endpoints)?;
    Some(WitnessConfig::Etcd { endpoints })
}

fn two_witnesses() -> Rejection {
    Rejection::new(
        "a datastore has one witness, and `etcd` names it already",
        "remove this key, or remove `etcd`",
    )
}

fn address(value: &DeValue<'_>) -> Result<WitnessAddress, Rejection> {
    parsed(
        value,
        "write the `listen` of the witness as HOST:PORT, in double quotes",
    )
}

fn endpoints(value: &DeValue<'_>) -> Result<Vec<EtcdEndpoint>, Rejection> {
    const CURE: &str = "write a list of endpoints, such as [\"http://10.0.0.3:2379\"]";
    let Some(list) = value.as_array() else {
        return Err(Rejection::new("this must be a list", CURE));
    };
    if list.is_empty() {
        return Err(Rejection::new("the list is empty", CURE));
    }
    list.iter()
        .map(|item| parsed(item.get_ref(), CURE))
        .collect()
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(
    value: &DeValue<'_>,
    cure: &'static str,
) -> Result<T, Rejection> {
    let Some(text) = value.as_str() else {
        return Err(Rejection::new("this must be a text", cure));
    };
    text.parse()
        .map_err(|error: T::Err| Rejection::new(error.to_string(), cure))
}

/// Whether a datastore has this section, valid or not.
pub(super) fn is_named(datastore: &Section<'_>) -> bool {
    datastore.has("witness")
}
