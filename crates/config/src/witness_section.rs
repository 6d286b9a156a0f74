//! The section `[datastore.witness]`: the witness that a node asks for one datastore.

use std::str::FromStr;

use lockstep_driver::config::settings;
use lockstep_witness::{EtcdEndpoint, WitnessAddress, WitnessConfig};
use toml::de::DeValue;

use super::problem::{Problems, Rejection};
use super::section::{KeyLines, Section};
use super::value;

/// Reads the witness of a datastore, if there is a section for it. The result has no witness if it is refused, but always
/// the lines of its keys.
pub(super) fn read(
    problems: &mut Problems<'_>,
    datastore: &Section<'_>,
) -> Option<(Option<WitnessConfig>, KeyLines)> {
    let section = datastore.table(problems, "witness", "[datastore.witness]")?;
    let lines = section.key_lines(problems);
    Some((read_keys(problems, &section), lines))
}

fn read_keys(problems: &mut Problems<'_>, section: &Section<'_>) -> Option<WitnessConfig> {
    let above = ("[[datastore]]", &*settings::keys(settings::DATASTORE));
    section.refuse_unknown_below(problems, &settings::keys(settings::WITNESS), above);
    let example = |key| settings::example(settings::WITNESS, key);
    if !section.has("etcd") {
        let address = section.required(problems, "address", example("address"), address);
        let fingerprint = example("fingerprint");
        let fingerprint =
            section.required(problems, "fingerprint", fingerprint, value::fingerprint);
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
