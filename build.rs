//! Generates the code of the control service from its description, without `protoc`.

use std::error::Error;

const CONTROL: &str = "proto/control.proto";

/// The conversion between the messages and the reports uses serde (`src/control/wire.rs`). A field that only the
/// report has is an error there, and not lost.
const MESSAGE_ATTRIBUTE: &str =
    "#[derive(serde::Serialize, serde::Deserialize)] #[serde(deny_unknown_fields)]";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={CONTROL}");
    let descriptors = protox::compile([CONTROL], ["proto"])?;
    tonic_prost_build::configure()
        .type_attribute(".", MESSAGE_ATTRIBUTE)
        .compile_fds(descriptors)?;
    Ok(())
}
