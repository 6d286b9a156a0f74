//! The programs of libnfs and QEMU as clients.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use lockstep_testbed::Which::{Primary as A, Secondary as B};
use lockstep_testbed::operator::{assert_identical, await_in_sync};

use crate::site::{Site, url};

/// A running `qemu-io`, which keeps its connection and its handle.
struct QemuIo {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl QemuIo {
    fn start(site: &Site, format: &str, name: &str) -> Self {
        // Otherwise the lines would come when `qemu-io` ends.
        let by_line = ["-oL", "qemu-io", "-f", format, &url(name)];
        let mut command = site.program("stdbuf", &by_line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        Self {
            input: process.stdin.take().unwrap(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    /// Has a command done, and checks the line that it prints.
    fn done(&mut self, command: &str, expected: &str) {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        // The second line has the speed.
        self.output.read_line(&mut line).unwrap();
        assert!(line.contains(expected), "{command}: {line}");
        self.output.read_line(&mut String::new()).unwrap();
    }

    fn end(mut self) {
        // The program takes one line at a time from its input, and saves everything at its end.
        writeln!(self.input, "quit").unwrap();
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

/// Programs of libnfs write and read files on both servers.
pub fn copy_and_list(site: &mut Site) {
    let local = site.pair.outside("local");
    let bytes: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
    fs::write(&local, &bytes).unwrap();
    let local = local.to_str().unwrap();
    site.run("nfs-cp", &[local, &url("copy")]);
    site.move_from(A);
    let listed = site.run("nfs-ls", &[&url("")]);
    assert!(
        listed.contains(" copy") && listed.contains(" 3145728 "),
        "{listed}"
    );
    let back = format!("{local}-back");
    site.run("nfs-cp", &[&url("copy"), &back]);
    assert!(fs::read(&back).unwrap() == bytes, "the copy differs");
    await_in_sync(&mut site.pair, B, 2);
    assert_identical(site.pair.node(B));
}

/// QEMU's tools make and check images, and `qemu-io` keeps its image open over failovers.
pub fn images(site: &mut Site) {
    site.run("qemu-img", &["create", "-f", "qcow2", &url("disk"), "64M"]);
    let mut disk = QemuIo::start(site, "qcow2", "disk");
    disk.done("write -P 1 0 1M", "wrote 1048576/1048576 bytes");
    site.move_from(A);
    disk.done("read -P 1 0 1M", "read 1048576/1048576 bytes");
    disk.done("write -f -P 2 1M 512k", "wrote 524288/524288 bytes");
    await_in_sync(&mut site.pair, B, 2);
    site.move_from(B);
    disk.done("read -P 2 1M 512k", "read 524288/524288 bytes");
    disk.done("write -P 3 10M 64k", "wrote 65536/65536 bytes");
    disk.end();
    let checked = site.run("qemu-img", &["check", &url("disk")]);
    assert!(checked.contains("No errors were found"), "{checked}");
    site.run(
        "qemu-img",
        &["convert", "-O", "raw", &url("disk"), &url("raw")],
    );
    let compared = site.run("qemu-img", &["compare", &url("disk"), &url("raw")]);
    assert!(compared.contains("identical"), "{compared}");
    await_in_sync(&mut site.pair, A, 3);
    assert_identical(site.pair.node(A));
}
