//! A disk that forgets, for scripts: mounts an empty one and obeys the lines it reads.
//!
//! It prints one line for each, `ok ...` or `error ...`. At the end of its input it unmounts, and the
//! disk is gone.

use std::io::{self, BufRead};
use std::process::{Child, Command, ExitCode};

use lockstep_lossy::Lossy;
use lockstep_lossy::disk::{CallClass, Survivors};
use lockstep_lossy::random::Random;
use lockstep_types::Errno;

const USAGE: &str = "usage: lockstep-lossy MOUNTPOINT

then, on its standard input, one a line:
  lose SEED          power is lost: any part of what was not synced is gone, by chance from SEED
  forget             power is lost: all that was not synced is gone
  unsynced           says how many pages, lengths and names are not synced
  fail CLASS [N]     the next call of a class, or the Nth from now on, fails with EIO: read, look, name,
                     write or sync. What a sync that fails should have saved is lost, though it is seen
  fail-all CLASS     every call of that class does
  heal               no call fails any more
  hold               no sync ends; who waits for one cannot be killed
  release            they end
  held               says how many wait
  remount            unmounts and mounts anew: what syncs that failed have lost is not seen any more
  run PROGRAM ARG... starts a program (words are split at blanks) and says its process id; only in
                     programs started so does syncfs save anything

Before power can be lost, or it be mounted anew, nobody may have a file open on it: kill first.";

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
            lossy.mount_anew()?;
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
