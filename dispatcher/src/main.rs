//! `baton-dispatcher`: the program beside the server that holds its clients.
//!
//! The extension's launcher starts it (launcher.c), nobody else; what a
//! person runs is `baton`, a program of its own.

mod console;
mod core;
mod protocol;
mod shell;

use clap::Parser;

fn main() -> std::process::ExitCode {
    match shell::main(shell::Arguments::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("baton-dispatcher: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
