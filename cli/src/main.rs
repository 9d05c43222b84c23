//! `baton`: what a person runs. It reads no stranger's bytes; the program that
//! does is `baton-dispatcher`, which the server starts.

mod demo;

use clap::{Parser, Subcommand};

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
}

fn main() -> std::process::ExitCode {
    let result = match Arguments::parse().command {
        Command::Demo(arguments) => demo::main(arguments),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("baton: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
