//! Programs that are killed while their requests wait for the node.

use std::fs;
use std::process::{Child, Command, Stdio};

use lockstep_driver::client::Standing;
use lockstep_types::settings::Standby;

use crate::gated::await_true;
use crate::{content, mount};

/// A program that is killed at the end of a test.
struct Program(Child);

impl Program {
    fn start(script: &str) -> Self {
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script]).stdout(Stdio::null());
        Self(shell.spawn().unwrap())
    }

    /// Kills the program by a signal, and waits for its end.
    fn end_by(&mut self, signal: &str) {
        let mut kill = Command::new("kill");
        let killed = kill.args([signal, &self.0.id().to_string()]).status();
        assert!(killed.unwrap().success());
        await_true(|| self.0.try_wait().unwrap().is_some());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _killed = self.0.kill();
    }
}

#[test]
fn a_program_that_waits_for_the_node_can_be_killed() {
    // A shell without a terminal lets its background programs ignore SIGINT.
    for signal in ["-KILL", "-TERM", "-USR1"] {
        let Some((mount, service)) = mount(Standby::Wait) else {
            return;
        };
        fs::write(mount.path("f"), "content").unwrap();
        service.stand(Standing::Following);
        let path = mount.path("f").display().to_string();
        let mut program = Program::start(&format!("exec cat {path}"));
        service.await_refused_programs(1);
        program.end_by(signal);
    }
}

#[test]
fn the_change_of_a_killed_program_does_not_happen() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    fs::write(mount.path("f"), "content").unwrap();
    service.stand(Standing::Undecided);
    let path = mount.path("f").display().to_string();
    let mut program = Program::start(&format!("exec truncate -s 1 {path}"));
    service.await_refused_programs(1);
    program.end_by("-KILL");
    service.stand(Standing::Serving);
    assert_eq!(content(&mount), b"content");
}

/// A signal that does not end the program interrupts nothing, as on any disk.
#[test]
fn a_signal_that_a_program_survives_interrupts_no_request() {
    let Some((mount, service)) = mount(Standby::Wait) else {
        return;
    };
    fs::write(mount.path("f"), "content").unwrap();
    service.stand(Standing::Undecided);
    let path = mount.path("f").display().to_string();
    let mut program = Program::start(&format!(
        "trap : TERM; read text < {path}; test -n \"$text\""
    ));
    service.await_refused_programs(1);
    let mut kill = Command::new("kill");
    let told = kill.args(["-TERM", &program.0.id().to_string()]).status();
    assert!(told.unwrap().success());
    let mut reader = Program::start(&format!("exec cat {path}"));
    service.await_refused_programs(2);
    reader.end_by("-KILL");
    assert!(program.0.try_wait().unwrap().is_none());
    service.stand(Standing::Serving);
    await_true(|| program.0.try_wait().unwrap().is_some());
}
