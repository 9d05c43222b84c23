//! `baton`: what a person runs. It reads no stranger's bytes; the program that
//! does is `baton-dispatcher`, which the server starts.

mod demo;
mod doctor;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Shares a handful of PostgreSQL backends between thousands of sessions.
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
        // 1 is what it says of a server that it could look at.
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
