//! A program in place of `systemctl`: it leaves its verb in the name of a file, and waits until the file is gone. The manager of
//! the server carries the request out, and removes the file.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Writes the program into the directory of a server.
pub fn write_program(directory: &Path) -> PathBuf {
    let requests = directory.join("requests");
    fs::create_dir(&requests).unwrap();
    let path = directory.join("nfs-service");
    let requests = requests.display();
    let text = format!(
        "#!/bin/sh\nrequest={requests}/$$.$1\n: >\"$request\"\nwhile [ -e \"$request\" ]; do sleep 0.02; done\n"
    );
    let mut options = OpenOptions::new();
    let file = options.create_new(true).write(true).mode(0o755).open(&path);
    file.unwrap().write_all(text.as_bytes()).unwrap();
    path
}
