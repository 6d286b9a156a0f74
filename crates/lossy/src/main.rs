//! A disk that forgets, for scripts: mounts an empty one and obeys the lines it reads.
//!
//! It prints one line for each, `ok ...` or `error ...`. At the end of its input it unmounts, and the
//! disk is gone.

use std::io::{self, BufRead};
use std::process::{Child, Command, ExitCode};

use lockstep_lossy::Lossy;
use lockstep_lossy::disk::Survivors;
use lockstep_lossy::random::Random;

const USAGE: &str = "usage: lockstep-lossy MOUNTPOINT

then, on its standard input, one a line:
  lose SEED          power is lost: any part of what was not synced is gone, by chance from SEED
  forget             power is lost: all that was not synced is gone
  unsynced           says how many pages, lengths and names are not synced
  run PROGRAM ARG... starts a program (words are split at blanks) and says its process id; only in
                     programs started so does syncfs save anything

Before power can be lost, nobody may have a file open on it: kill first.";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(mount_point), None) = (arguments.next(), arguments.next()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match Lossy::mount(mount_point) {
        Ok(lossy) => obey(lossy),
        Err(error) => {
            eprintln!("lockstep-lossy: cannot mount: {error}");
            ExitCode::FAILURE
        }
    }
}

fn obey(mut lossy: Lossy) -> ExitCode {
    println!("ok mounted");
    let mut started = Vec::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match carry_out(&mut lossy, &line, &mut started) {
            Ok(said) => println!("ok {said}"),
            Err(error) => println!("error {error}"),
        }
    }
    ExitCode::SUCCESS
}

fn carry_out(lossy: &mut Lossy, line: &str, started: &mut Vec<Child>) -> io::Result<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // Else those that have ended would be there for ever.
    started.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    match words.as_slice() {
        ["lose", seed] => {
            let seed = seed.parse().map_err(io::Error::other)?;
            let survivors = lossy.lose_power(&mut Random::new(seed))?;
            Ok(format!("lost power: {survivors:?}"))
        }
        ["forget"] => {
            lossy.lose_power_with(Survivors::Nothing, &mut Random::new(0))?;
            Ok("forgot".to_owned())
        }
        ["unsynced"] => Ok(lossy.disk().unsynced().to_string()),
        ["run", program, arguments @ ..] => {
            let child = lossy.spawn(Command::new(program).args(arguments))?;
            let said = child.id().to_string();
            started.push(child);
            Ok(said)
        }
        _ => Err(io::Error::other(USAGE.replace('\n', " "))),
    }
}
