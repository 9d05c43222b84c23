//! The way to the server: connections that any client could make.

use crate::shell::parameters::Parameters;
use crate::shell::sys::socket::{self, Kind};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The names of a list as in postgresql.conf: one in quotes may have commas and
/// blanks, and "" for a quote (SplitDirectoriesString, varlena.c).
pub fn directories(list: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut letters = list.chars().peekable();
    let mut quoted = false;
    while let (Some(letter), Some(name)) = (letters.next(), names.last_mut()) {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                name.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => names.push(String::new()),
            // Around a name; those within stay.
            ' ' | '\t' | '\n' | '\r' if !quoted && name.is_empty() => {}
            _ => name.push(letter),
        }
    }
    for name in &mut names {
        name.truncate(name.trim_end().len());
    }
    names.retain(|name| !name.is_empty());
    names
}

pub fn socket_path(directory: impl AsRef<Path>, port: u16) -> PathBuf {
    directory.as_ref().join(format!(".s.PGSQL.{port}"))
}

/// A connection. A server that has too many
/// who wait to be accepted (EAGAIN) is there: it is tried again later, and not by
/// TCP, where other lines of pg_hba.conf count.
pub fn connect(parameters: &Parameters) -> io::Result<OwnedFd> {
    let port = parameters.server_port;
    let mut last = None;
    for directory in directories(&parameters.unix_socket_directories) {
        match socket::connect_unix(&socket_path(&directory, port), Kind::Stream) {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    for address in socket::loopback(port) {
        match socket::connect_tcp(&address) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = last.or(Some(error)),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_split_as_the_server_does() {
        let found = directories(r#" /tmp , "/a, b/c" ,@name,"with ""quotes""",, /two words"#);
        let names = ["/tmp", "/a, b/c", "@name", "with \"quotes\"", "/two words"];
        assert_eq!(found, names);
    }
}
