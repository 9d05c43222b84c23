//! `baton`: the program beside the server.
//!
//! One binary, two uses: `baton dispatcher` is started by the extension's
//! launcher and nobody else; `baton demo` is for a person who wants to see
//! the pool at work on a private server.

mod core;
mod demo;
mod dispatcher;
mod protocol;

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
    /// Run as the dispatcher (started by the server's pg_baton launcher, not by hand)
    Dispatcher(dispatcher::Arguments),
    /// Start a private PostgreSQL server with the pool and show it at work
    Demo(demo::Arguments),
}

fn main() -> std::process::ExitCode {
    let result = match Arguments::parse().command {
        Command::Dispatcher(arguments) => dispatcher::main(arguments),
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
