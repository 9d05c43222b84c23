//! `baton`: the program for users. It reads no bytes of untrusted clients; `baton-dispatcher`,
//! which the server starts, does that.

mod demo;
mod doctor;
mod pause;
mod restart;
mod text;
mod top;
mod upgrade;
mod why;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Shares a few PostgreSQL backends between thousands of sessions.
#[derive(Parser)]
#[command(name = "baton", version, about, long_about = None)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a private PostgreSQL server with the pool and show it at work
    Demo(demo::Arguments),
    /// Look at a live server: what works, what would not, and what mends it
    Doctor(doctor::Arguments),
    /// Let running transactions end, and hold the next ones back
    Pause(pause::Arguments),
    /// Restart the server without an error for sessions that can wait
    Restart(restart::Arguments),
    /// End pauses
    Resume(pause::Scope),
    /// Watch sessions, backends and waits of a live server
    Top(top::Arguments),
    /// Replace the dispatcher of a live server by the program that is installed
    Upgrade(upgrade::Arguments),
    /// Say where a session is, why it is there, and what the pool would do next
    Why(why::Arguments),
}

fn main() -> ExitCode {
    let (result, failure) = match Arguments::parse().command {
        Command::Demo(arguments) => {
            let ran = demo::main(arguments).map(|()| ExitCode::SUCCESS);
            (ran, ExitCode::FAILURE)
        }
        // 1 means that the server could be asked, and something does not work or was not done.
        Command::Doctor(arguments) => (doctor::main(&arguments), ExitCode::from(2)),
        Command::Pause(arguments) => {
            let ran = pause::pause(&arguments).map(|()| ExitCode::SUCCESS);
            (ran, ExitCode::FAILURE)
        }
        Command::Restart(arguments) => (restart::main(&arguments), ExitCode::from(2)),
        Command::Resume(scope) => {
            let ran = pause::resume(&scope).map(|()| ExitCode::SUCCESS);
            (ran, ExitCode::FAILURE)
        }
        Command::Top(arguments) => (top::main(arguments), ExitCode::from(2)),
        Command::Why(arguments) => (why::main(&arguments), ExitCode::from(2)),
        Command::Upgrade(arguments) => (upgrade::main(&arguments), ExitCode::from(2)),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("baton: {error:#}");
            failure
        }
    }
}
