//! TLS: the keys cannot be handed over, so a relay stands between a TLS client and the backend that
//! serves its session.
//!
//! The socket of a plain client is handed to backends as it is. The socket of a TLS client
//! is given to the process of the relays. A relay owns it, together with one end of a socketpair. The other
//! end is handed over, and a backend sees no difference. The two must never be confused, so
//! they are two types: [`ClientEnd`] and [`HandedEnd`].
//!
//! Relays run in a process of their own, which outlives the dispatcher, on threads of which each
//! has its own epoll. The dispatcher does no TLS I/O and no cryptography: it makes the socketpair
//! and receives the result of the handshake. docs/design/tls.md has the whole design.
//!
//! | module | what it does |
//! |---|---|
//! | `context` | from the server's parameters and the key file to OpenSSL's context |
//! | `relay` | one client's relay and its TLS session; no system calls |
//! | `threads` | the threads that run relays, a relay's sockets, and relays at rest |
//! | `process` | the process that runs them, and the dispatcher's connection to it |
//!
//! This file has the two ends of a relay, and the facts that a handshake has shown.

pub mod context;
pub mod process;
pub mod relay;
pub mod threads;

use super::sys::openssl_functions;
use context::ServerContext;
use openssl::nid::Nid;
use openssl::ssl::SslRef;
use openssl::x509::{X509NameRef, X509Ref};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The socket that a client itself reads and writes.
pub struct ClientEnd(pub OwnedFd);

/// The socket that is used for the login and handed to backends: a plain client's own socket,
/// or the far end of a relay's socketpair.
pub struct HandedEnd {
    socket: OwnedFd,
    is_relayed: bool,
    /// Known once the handshake is over.
    tls: Option<Arc<Facts>>,
}

impl HandedEnd {
    /// Without TLS both ends are one socket.
    pub fn plain(client: ClientEnd) -> HandedEnd {
        HandedEnd {
            socket: client.0,
            is_relayed: false,
            tls: None,
        }
    }

    /// The far end of a socketpair.
    pub fn relayed(socket: OwnedFd) -> HandedEnd {
        HandedEnd {
            socket,
            is_relayed: true,
            tls: None,
        }
    }

    pub fn secured(&mut self, facts: Arc<Facts>) {
        debug_assert!(self.is_relayed);
        self.tls = Some(facts);
    }

    /// The plain client's own socket, as a relay takes it over.
    pub fn into_client_end(self) -> ClientEnd {
        debug_assert!(!self.is_relayed);
        ClientEnd(self.socket)
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub fn is_relayed(&self) -> bool {
        self.is_relayed
    }

    pub fn tls(&self) -> Option<&Arc<Facts>> {
        self.tls.as_ref()
    }

    /// The names in the client's certificate, if it has one.
    pub fn certificate(&self) -> Option<&Names> {
        let certificate = self.tls.as_ref()?.certificate.as_ref();
        certificate.map(|certificate| &certificate.names)
    }

    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

// ---- Facts ----------------------------------------------------------------
//
// What a handshake has shown of a session.

/// For the log, for pg_hba.conf, and for pg_stat_ssl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The name that SSL_get_version returns.
    pub protocol: String,
    pub cipher: String,
    /// The bits that the algorithm uses (be_tls_get_cipher_bits), which may be more than are
    /// secret.
    pub bits: i32,
    /// Has the client chosen PostgreSQL's protocol by ALPN?
    pub has_alpn: bool,
    /// The client's certificate, which has been checked; None if the client has none.
    pub certificate: Option<Certificate>,
    /// Would a client certificate have been checked?
    pub has_ca: bool,
    /// tls-server-end-point (RFC 5929), if the certificate has one.
    pub end_point: Option<Vec<u8>>,
    /// The certificate that the client was shown, in DER.
    pub server_certificate: Option<Arc<[u8]>>,
}

/// A client's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    pub names: Names,
    /// The texts that pg_stat_ssl shows.
    pub subject: Vec<u8>,
    pub issuer: Vec<u8>,
    pub serial: String,
}

/// The names that pg_hba.conf may compare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Names {
    /// Empty if the certificate has none.
    pub common: Vec<u8>,
    pub distinguished: Vec<u8>,
}

impl Names {
    /// CheckCertAuth() (auth.c) treats an empty name as no name.
    pub fn is_named(&self) -> bool {
        !self.common.is_empty()
    }
}

impl Facts {
    /// Collects the facts. An error ends the connection, as in be_tls_open_server.
    pub fn of(ssl: &SslRef) -> Result<Facts, String> {
        let cipher = ssl.current_cipher();
        let certificate = ssl.peer_certificate();
        Ok(Facts {
            protocol: ssl.version_str().to_owned(),
            cipher: cipher.map_or("", |cipher| cipher.name()).to_owned(),
            bits: cipher.map_or(0, |cipher| cipher.bits().algorithm),
            has_alpn: ssl.selected_alpn_protocol().is_some(),
            certificate: certificate
                .map(|certificate| Certificate::of(&certificate))
                .transpose()?,
            has_ca: false,
            end_point: None,
            server_certificate: None,
        })
    }

    /// Adds the facts that belong to the server, not to the session.
    pub fn add(&mut self, context: &ServerContext) {
        self.has_ca = context.has_ca;
        self.end_point = context.end_point.clone();
        self.server_certificate = context.certificate.clone();
    }

    /// What PostgreSQL appends to "connection authorized" (postinit.c).
    pub fn for_log(&self) -> String {
        format!(
            " SSL enabled (protocol={}, cipher={}, bits={})",
            self.protocol, self.cipher, self.bits
        )
    }
}

impl Certificate {
    fn of(certificate: &X509Ref) -> Result<Certificate, String> {
        let subject = certificate.subject_name();
        // The first common name, as X509_NAME_get_text_by_NID finds it, in its own encoding.
        let common = subject.entries_by_nid(Nid::COMMONNAME).next();
        let names = Names {
            common: common.map_or_else(Vec::new, |entry| entry.data().as_slice().to_vec()),
            distinguished: openssl_functions::name_rfc2253(subject)
                .ok_or("could not read the client's certificate")?,
        };
        for (what, name) in [
            ("common", &names.common),
            ("distinguished", &names.distinguished),
        ] {
            if name.contains(&0) {
                return Err(format!(
                    "SSL certificate's {what} name contains embedded null"
                ));
            }
        }
        let serial = (certificate.serial_number().to_bn())
            .and_then(|number| number.to_dec_str().map(|text| text.to_string()));
        Ok(Certificate {
            names,
            subject: with_slashes(subject),
            issuer: with_slashes(certificate.issuer_name()),
            serial: serial.unwrap_or_default(),
        })
    }
}

/// The format of X509_NAME_to_cstring, in UTF-8.
fn with_slashes(name: &X509NameRef) -> Vec<u8> {
    let mut text = Vec::new();
    for entry in name.entries() {
        let nid = entry.object().nid();
        let field = nid.short_name().or_else(|_| nid.long_name());
        text.push(b'/');
        text.extend_from_slice(field.unwrap_or("?").as_bytes());
        text.push(b'=');
        text.extend(openssl_functions::string_text(entry.data()).unwrap_or_default());
    }
    text
}
