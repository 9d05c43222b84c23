//! `baton`: the program for users. It reads no bytes of untrusted clients; `baton-dispatcher`,
//! which the server starts, does that.

mod demo;
mod doctor;

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
}

fn main() -> ExitCode {
    let (result, failure) = match Arguments::parse().command {
        Command::Demo(arguments) => {
            let ran = demo::main(arguments).map(|()| ExitCode::SUCCESS);
            (ran, ExitCode::FAILURE)
        }
        // 1 means that the server could be checked and something does not work.
        Command::Doctor(arguments) => (doctor::main(&arguments), ExitCode::from(2)),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("baton: {error:#}");
            failure
        }
    }
}
