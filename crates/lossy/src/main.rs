//! A disk that forgets, for scripts: mounts an empty disk and executes the lines of its input.
//!
//! The program prints one line for each input line, `ok ...` or `error ...`. At the end of its input it
//! unmounts, and the disk is gone.

use std::io::{self, BufRead};
use std::process::{Child, Command, ExitCode};

use lockstep_lossy::Lossy;
use lockstep_lossy::disk::{CallClass, Survivors};
use lockstep_lossy::random::Random;
use lockstep_types::Errno;

const USAGE: &str = "usage: lockstep-lossy MOUNTPOINT

then, on its standard input, one command a line:
  lose SEED          loses power: any part of the unsynced changes is lost, at random from SEED
  forget             loses power: all unsynced changes are lost
  unsynced           prints how many pages, lengths and names are not synced
  fail CLASS [N]     lets the next call of a class, or the Nth from now on, fail with EIO: read, look,
                     name, write or sync. The changes that a failed sync should have saved are lost,
                     though reads still see them
  fail-all CLASS     lets every call of that class fail
  heal               ends all failures
  hold               lets no sync end; a process that waits for a sync cannot be killed
  release            lets syncs end again
  held               prints how many syncs wait
  remount            unmounts and mounts again: the changes that failed syncs lost are no longer seen
  run PROGRAM ARG... starts a program (words are split at blanks) and prints its process id; syncfs
                     saves changes only in programs that are started by this command

Before a loss of power or a remount no process may have a file open on the disk: kill first.";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(mount_point), None) = (arguments.next(), arguments.next()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match Lossy::mount(mount_point) {
        Ok(lossy) => run_commands(lossy),
        Err(error) => {
            eprintln!("lockstep-lossy: cannot mount: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_commands(mut lossy: Lossy) -> ExitCode {
    println!("ok mounted");
    let mut started = Vec::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match execute(&mut lossy, &line, &mut started) {
            Ok(said) => println!("ok {said}"),
            Err(error) => println!("error {error}"),
        }
    }
    ExitCode::SUCCESS
}

fn execute(lossy: &mut Lossy, line: &str, started: &mut Vec<Child>) -> io::Result<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // Otherwise programs that have ended would stay zombies forever.
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
        ["fail", class] => fail(lossy, class, "1"),
        ["fail", class, nth] => fail(lossy, class, nth),
        ["fail-all", class] => {
            lossy.disk().fail_calls(class_of(class)?, Errno::Io);
            Ok("fails".to_owned())
        }
        ["heal"] => {
            lossy.disk().stop_failing();
            Ok("healed".to_owned())
        }
        ["hold"] => {
            lossy.hold_syncs();
            Ok("holds".to_owned())
        }
        ["release"] => {
            lossy.release_syncs();
            Ok("released".to_owned())
        }
        ["held"] => Ok(lossy.held_syncs().to_string()),
        ["remount"] => {
            lossy.remount()?;
            Ok("mounted".to_owned())
        }
        ["run", program, arguments @ ..] => {
            let child = lossy.spawn(Command::new(program).args(arguments))?;
            let said = child.id().to_string();
            started.push(child);
            Ok(said)
        }
        _ => Err(io::Error::other(USAGE.replace('\n', " "))),
    }
}

fn fail(lossy: &Lossy, class: &str, nth: &str) -> io::Result<String> {
    let nth = nth.parse().map_err(io::Error::other)?;
    lossy.disk().fail_call(class_of(class)?, nth, Errno::Io);
    Ok("will fail".to_owned())
}

fn class_of(word: &str) -> io::Result<CallClass> {
    match word {
        "read" => Ok(CallClass::Read),
        "look" => Ok(CallClass::Look),
        "name" => Ok(CallClass::Name),
        "write" => Ok(CallClass::Write),
        "sync" => Ok(CallClass::Sync),
        _ => Err(io::Error::other(format!("there is no class {word:?}"))),
    }
}
