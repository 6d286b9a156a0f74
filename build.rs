//! Makes the code of the control service out of its description, without `protoc`.

use std::error::Error;

const CONTROL: &str = "proto/control.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={CONTROL}");
    let descriptors = protox::compile([CONTROL], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
