//! Generates the code of both services from their descriptions, without `protoc`.

use std::error::Error;

const SERVICES: [&str; 2] = ["proto/witness.proto", "proto/etcd.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for service in SERVICES {
        println!("cargo::rerun-if-changed={service}");
    }
    let descriptors = protox::compile(SERVICES, ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
