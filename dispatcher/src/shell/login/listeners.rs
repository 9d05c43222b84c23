//! The pool's own sockets: opening and closing them.

use crate::shell::backends::opening::{directories, socket_path};
use crate::shell::parameters::Parameters;
use crate::shell::sys::process;
use crate::shell::sys::socket::{self, Address, Kind};
use anyhow::{anyhow, Result};
use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use tracing::{info, warn};

/// Exit code when a port or socket is another's: trying again may help.
pub const EXIT_PORT_TAKEN: u8 = 75;

/// Somebody else listens there.
#[derive(Debug, thiserror::Error)]
#[error("could not listen on {0}: the address is in use; {1}")]
pub struct Taken(String, String);

/// By whom, as far as can be said.
fn taken(address: String, parameters: &Parameters) -> Taken {
    let by_whom = match parameters.port_collision.as_str() {
        "" => "is another server or dispatcher running there?".to_owned(),
        settings => format!("the server itself listens there: change {settings}"),
    };
    Taken(address, by_whom)
}

/// One listening socket.
pub struct Listener {
    pub socket: OwnedFd,
    /// The file of a Unix socket, to be removed at the end.
    pub path: Option<PathBuf>,
    /// The address that all its clients have called, if it is but one.
    pub local: Option<Address>,
}

fn tcp_addresses(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match name {
        "*" => Ok(vec![
            SocketAddr::from(([0, 0, 0, 0], port)),
            SocketAddr::from(([0u16; 8], port)),
        ]),
        // Blocks in the name service; done once, before anything is served.
        _ => Ok((name, port).to_socket_addrs()?.collect()),
    }
}

/// Opens all that the parameters name. As in stock, an address that cannot be
/// bound is a warning, none at all is an error.
pub fn open(parameters: &Parameters) -> Result<Vec<Listener>> {
    let mut found = Vec::new();
    let mut wanted = 0;
    let mut taken = None;
    let mut tried = HashSet::new();
    for name in directories(&parameters.listen_addresses) {
        let addresses = match tcp_addresses(&name, parameters.port) {
            Ok(addresses) => addresses,
            Err(error) => {
                warn!("could not translate host name \"{name}\" to address: {error}");
                wanted += 1;
                continue;
            }
        };
        for address in addresses {
            wanted += 1;
            // Ours already: two names may stand for one address.
            if !tried.insert(address) {
                continue;
            }
            match socket::listen_tcp(&address) {
                Ok(socket) => {
                    info!("listening on {address}");
                    let is_one = !address.ip().is_unspecified();
                    found.push(Listener {
                        local: socket::local_address(socket.as_raw_fd())
                            .ok()
                            .filter(|_| is_one),
                        socket,
                        path: None,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    let is_taken = self::taken(address.to_string(), parameters);
                    warn!("{is_taken}");
                    taken = Some(is_taken);
                }
                Err(error) => {
                    warn!("could not listen on {address}: {error}");
                }
            }
        }
    }
    if let Some(taken) = taken.filter(|_| found.is_empty()) {
        return Err(taken.into());
    }
    let group = match parameters.unix_socket_group.as_str() {
        "" => None,
        name => Some(
            process::group_id(name).ok_or_else(|| anyhow!("group \"{name}\" does not exist"))?,
        ),
    };
    for directory in directories(&parameters.unix_socket_directories) {
        wanted += 1;
        let path = socket_path(&directory, parameters.port);
        let mode = parameters.unix_socket_permissions;
        match socket::listen_unix(&path, Kind::Stream, mode, group) {
            Ok(socket) => {
                info!("listening on Unix socket \"{}\"", path.display());
                found.push(Listener {
                    socket,
                    path: (!socket::is_abstract(&path)).then_some(path),
                    local: None,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                close(&mut found);
                return Err(self::taken(path.display().to_string(), parameters).into());
            }
            Err(error) => warn!(
                "could not create Unix socket \"{}\": {error}",
                path.display()
            ),
        }
    }
    if found.is_empty() && wanted > 0 {
        return Err(anyhow!("could not create any socket to listen on"));
    }
    Ok(found)
}

/// Closes all and removes their files.
pub fn close(listeners: &mut Vec<Listener>) {
    for listener in listeners.drain(..) {
        if let Some(path) = &listener.path {
            let _ = std::fs::remove_file(path);
        }
    }
}
