//! From the server's parameters and its key file to the context of TLS sessions.
//!
//! Follows be_tls_init (be-secure-openssl.c) in order, choices and texts: OpenSSL gets the same
//! settings here as in the server. Blocks, as it reads files and may run a command.

use crate::shell::sys::openssl_functions::{self, signature_digest};
use crate::shell::sys::{openssl_memory, process};
use openssl::bn::BigNum;
use openssl::dh::{Dh, DhRef};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Params};
use openssl::ssl::{
    select_next_proto, AlpnError, Ssl, SslContext, SslContextBuilder, SslFiletype, SslMethod,
    SslMode, SslOptions, SslSessionCacheMode, SslVerifyMode, SslVersion,
};
use openssl::x509::store::X509Lookup;
use openssl::x509::verify::X509VerifyFlags;
use openssl::x509::{X509Name, X509Ref};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// PG_ALPN_PROTOCOL_VECTOR (pqcomm.h of 17).
const ALPN: &[u8] = b"\x0apostgresql";
/// The first major that knows ALPN, and clients that begin with TLS at once.
const FIRST_MAJOR_WITH_ALPN: u32 = 17;
/// The first major with ssl_groups and ssl_tls13_ciphers.
const FIRST_MAJOR_WITH_GROUPS: u32 = 18;

/// SSL_OP_CLEANSE_PLAINTEXT (openssl/ssl.h of 3.0; 1.1.1 ignores it): OpenSSL overwrites data
/// in its own buffer after it has returned them. For programs that have not called
/// [`openssl_memory::take_over`], which costs less.
const CLEANSE_PLAINTEXT: SslOptions = SslOptions::from_bits_retain(1 << 1);

/// The result of the server's key, certificate and TLS parameters.
pub struct ServerContext {
    context: SslContext,
    /// May a client begin with TLS at once?
    pub takes_direct: bool,
    /// Are client certificates requested and checked?
    pub has_ca: bool,
    /// tls-server-end-point of RFC 5929: the certificate's hash.
    pub end_point: Option<Vec<u8>>,
    /// The certificate itself, in DER.
    pub certificate: Option<Arc<[u8]>>,
}

impl ServerContext {
    pub fn session(&self) -> Result<Ssl, ErrorStack> {
        Ssl::new(&self.context)
    }
}

#[cfg(test)]
impl ServerContext {
    pub fn without_certificate() -> ServerContext {
        let builder = SslContext::builder(SslMethod::tls_server());
        ServerContext {
            context: builder.unwrap().build(),
            takes_direct: false,
            has_ca: false,
            end_point: None,
            certificate: None,
        }
    }
}

/// Why the context is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occasion {
    Start,
    Reload,
}

/// The passphrase of the private key, which the launcher has obtained. None if the launcher was
/// not to ask, or got no passphrase.
pub type Passphrase = Option<Zeroizing<Vec<u8>>>;

/// ERR_SYSTEM_FLAG (openssl/err.h of 3.0): the rest of the code is an errno.
const SYSTEM_ERROR: u64 = 1 << 31;

/// The text of the first error, as SSLerrmessage has it.
pub fn reason(error: &ErrorStack) -> String {
    let Some(first) = error.errors().first() else {
        return "no SSL error reported".to_owned();
    };
    match (first.reason(), first.code()) {
        (Some(reason), _) => reason.to_owned(),
        (None, code) if code & SYSTEM_ERROR != 0 => {
            let number = (code & (SYSTEM_ERROR - 1)) as i32;
            error_text(&io::Error::from_raw_os_error(number))
        }
        (None, code) => format!("SSL error code {code}"),
    }
}

/// Loads the context. An error is the text for the log. Blocks.
pub fn load(
    settings: &Settings,
    server_major: u32,
    occasion: Occasion,
    passphrase: &Passphrase,
) -> Result<ServerContext, String> {
    let mut builder = SslContext::builder(SslMethod::tls_server())
        .map_err(|error| format!("could not create SSL context: {}", reason(&error)))?;
    // So an idle relay keeps no buffers.
    builder.set_mode(SslMode::ACCEPT_MOVING_WRITE_BUFFER | SslMode::RELEASE_BUFFERS);
    load_certificate(&mut builder, settings)?;
    load_key(&mut builder, settings, occasion, passphrase)?;
    set_versions(&mut builder, settings)?;
    builder
        .set_num_tickets(0)
        .map_err(|error| format!("could not create SSL context: {}", reason(&error)))?;
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder.set_options(
        SslOptions::NO_TICKET | SslOptions::NO_COMPRESSION | SslOptions::NO_RENEGOTIATION,
    );
    if !openssl_memory::is_taken_over() {
        builder.set_options(CLEANSE_PLAINTEXT);
    }
    set_dh(&mut builder, settings)?;
    set_ciphers(&mut builder, settings, server_major)?;
    load_authorities(&mut builder, settings)?;
    load_revoked(&mut builder, settings)?;
    let takes_direct = server_major >= FIRST_MAJOR_WITH_ALPN;
    if takes_direct {
        builder.set_alpn_select_callback(|_, offered| {
            select_next_proto(ALPN, offered).ok_or(AlpnError::ALERT_FATAL)
        });
    }
    let context = builder.build();
    let end_point = context.certificate().and_then(certificate_hash);
    let certificate = (context.certificate()).and_then(|certificate| certificate.to_der().ok());
    Ok(ServerContext {
        context,
        takes_direct,
        has_ca: !settings.ca_file.is_empty(),
        end_point,
        certificate: certificate.map(Arc::from),
    })
}

fn load_certificate(builder: &mut SslContextBuilder, settings: &Settings) -> Result<(), String> {
    let file = &settings.cert_file;
    builder.set_certificate_chain_file(file).map_err(|error| {
        let reason = reason(&error);
        format!("could not load server certificate file \"{file}\": {reason}")
    })
}

fn load_key(
    builder: &mut SslContextBuilder,
    settings: &Settings,
    occasion: Occasion,
    passphrase: &Passphrase,
) -> Result<(), String> {
    let file = &settings.key_file;
    check_key_permissions(file)?;
    let bytes = std::fs::read(file).map(Zeroizing::new).map_err(|error| {
        let error = error_text(&error);
        format!("could not load private key file \"{file}\": {error}")
    })?;
    let not_loaded = |error: &ErrorStack| {
        let reason = reason(error);
        format!("could not load private key file \"{file}\": {reason}")
    };
    let has_command = !settings.passphrase_command.is_empty();
    // Without a command no passphrase can be had: this program has no terminal.
    let may_ask =
        has_command && (occasion == Occasion::Start || settings.passphrase_command_supports_reload);
    let mut is_wanted = false;
    let key = PKey::private_key_from_pem_callback(&bytes, |into| {
        is_wanted = true;
        let Some(phrase) = passphrase.as_ref().filter(|_| may_ask) else {
            return Ok(0);
        };
        let length = phrase.len().min(into.len());
        into[..length].copy_from_slice(&phrase[..length]);
        Ok(length)
    });
    let key = key.map_err(|error| match (is_wanted, passphrase) {
        (true, _) if !may_ask => match occasion {
            Occasion::Reload => format!(
                "private key file \"{file}\" cannot be reloaded because it requires a passphrase"
            ),
            Occasion::Start => format!(
                "private key file \"{file}\" requires a passphrase: set ssl_passphrase_command"
            ),
        },
        (true, None) => format!(
            "could not load private key file \"{file}\": ssl_passphrase_command has given no passphrase"
        ),
        _ => not_loaded(&error),
    })?;
    // Already finds out if the key does not belong to the certificate.
    builder
        .set_private_key(&key)
        .map_err(|error| not_loaded(&error))?;
    builder
        .check_private_key()
        .map_err(|error| format!("check of private key failed: {}", reason(&error)))
}

/// The words of ssl_protocol_versions_info (guc.c); "" is any version.
fn version(name: &str) -> Option<SslVersion> {
    Some(match name {
        "TLSv1" => SslVersion::TLS1,
        "TLSv1.1" => SslVersion::TLS1_1,
        "TLSv1.2" => SslVersion::TLS1_2,
        "TLSv1.3" => SslVersion::TLS1_3,
        _ => return None,
    })
}

fn set_versions(builder: &mut SslContextBuilder, settings: &Settings) -> Result<(), String> {
    let (least, most) = (
        version(&settings.min_protocol_version),
        version(&settings.max_protocol_version),
    );
    builder
        .set_min_proto_version(least)
        .map_err(|_| "could not set minimum SSL protocol version".to_owned())?;
    builder
        .set_max_proto_version(most)
        .map_err(|_| "could not set maximum SSL protocol version".to_owned())?;
    // Compared by name: the names sort in the order of the versions.
    if most.is_some() && settings.min_protocol_version > settings.max_protocol_version {
        return Err("could not set SSL protocol version range: \"ssl_min_protocol_version\" cannot be higher than \"ssl_max_protocol_version\"".to_owned());
    }
    Ok(())
}

/// Does what initialize_dh does: takes the parameters of a file, else RFC 3526's group of 2048
/// bits, which is what FILE_DH2048 has.
fn set_dh(builder: &mut SslContextBuilder, settings: &Settings) -> Result<(), String> {
    let file = &settings.dh_params_file;
    let mut parameters = None;
    if !file.is_empty() {
        let read = match std::fs::read(file) {
            Ok(bytes) => Dh::params_from_pem(&bytes)
                .map_err(|error| format!("could not load DH parameters file: {}", reason(&error)))
                .and_then(|read| check_dh(&read).map(|()| read)),
            Err(error) => {
                let error = error_text(&error);
                Err(format!(
                    "could not open DH parameters file \"{file}\": {error}"
                ))
            }
        };
        match read {
            Ok(read) => parameters = Some(read),
            // As in load_dh_file, the built-in parameters are used then.
            Err(why) => tracing::warn!("{why}"),
        }
    }
    let built_in = || {
        let prime = BigNum::get_rfc3526_prime_2048()?;
        Dh::from_pqg(prime, None, BigNum::from_u32(2)?)
    };
    parameters
        .map_or_else(built_in, Ok)
        .and_then(|parameters| builder.set_tmp_dh(&parameters))
        .map_err(|error| format!("DH: could not set DH parameters: {}", reason(&error)))
}

/// Makes the checks of load_dh_file, and reports in its words.
fn check_dh(parameters: &DhRef<Params>) -> Result<(), String> {
    let faults = openssl_functions::dh_faults(parameters)
        .map_err(|error| format!("invalid DH parameters: {}", reason(&error)))?;
    if faults.p_is_not_prime {
        return Err("invalid DH parameters: p is not prime".to_owned());
    }
    if faults.generator_is_not_suitable && faults.p_is_not_safe_prime {
        let what = "invalid DH parameters: neither suitable generator or safe prime";
        return Err(what.to_owned());
    }
    Ok(())
}

fn set_ciphers(
    builder: &mut SslContextBuilder,
    settings: &Settings,
    server_major: u32,
) -> Result<(), String> {
    let groups = &settings.groups;
    let has_groups = server_major >= FIRST_MAJOR_WITH_GROUPS;
    if !groups.is_empty() {
        builder.set_groups_list(groups).map_err(|error| {
            if has_groups {
                // OpenSSL before 3.3 gives no reason.
                let reason = match error.errors().is_empty() {
                    true => "No valid groups found".to_owned(),
                    false => reason(&error),
                };
                format!("could not set group names specified in ssl_groups: {reason}")
            } else {
                format!("ECDH: unrecognized curve name: {groups}")
            }
        })?;
    }
    let what = if has_groups {
        "TLSv1.2 cipher"
    } else {
        "cipher"
    };
    builder
        .set_cipher_list(&settings.ciphers)
        .map_err(|_| format!("could not set the {what} list (no valid ciphers available)"))?;
    if !settings.tls13_ciphers.is_empty() {
        builder
            .set_ciphersuites(&settings.tls13_ciphers)
            .map_err(|_| {
                "could not set the TLSv1.3 cipher suites (no valid ciphers available)".to_owned()
            })?;
    }
    if settings.prefer_server_ciphers {
        builder.set_options(SslOptions::CIPHER_SERVER_PREFERENCE);
    }
    Ok(())
}

fn load_authorities(builder: &mut SslContextBuilder, settings: &Settings) -> Result<(), String> {
    let file = &settings.ca_file;
    if file.is_empty() {
        return Ok(());
    }
    builder
        .set_ca_file(file)
        .and_then(|()| X509Name::load_client_ca_file(file))
        .map(|names| builder.set_client_ca_list(names))
        .map_err(|error| {
            let reason = reason(&error);
            format!("could not load root certificate file \"{file}\": {reason}")
        })?;
    // Every client is asked for a certificate; pg_hba.conf decides which clients must have one.
    let once = SslVerifyMode::PEER | SslVerifyMode::CLIENT_ONCE;
    builder.set_verify_callback(once, |is_good, _| is_good);
    Ok(())
}

fn load_revoked(builder: &mut SslContextBuilder, settings: &Settings) -> Result<(), String> {
    let (file, directory) = (&settings.crl_file, &settings.crl_dir);
    if file.is_empty() && directory.is_empty() {
        return Ok(());
    }
    let store = builder.cert_store_mut();
    let mut load = || {
        if !file.is_empty() {
            let lookup = store.add_lookup(X509Lookup::file())?;
            lookup.load_crl_file(file, SslFiletype::PEM)?;
        }
        if !directory.is_empty() {
            let lookup = store.add_lookup(X509Lookup::hash_dir())?;
            lookup.add_dir(directory, SslFiletype::PEM)?;
        }
        store.set_flags(X509VerifyFlags::CRL_CHECK | X509VerifyFlags::CRL_CHECK_ALL)
    };
    load().map_err(|error: ErrorStack| {
        let reason = reason(&error);
        match (file.as_str(), directory.as_str()) {
            (file, "") => format!(
                "could not load SSL certificate revocation list file \"{file}\": {reason}"
            ),
            ("", directory) => format!(
                "could not load SSL certificate revocation list directory \"{directory}\": {reason}"
            ),
            (file, directory) => format!(
                "could not load SSL certificate revocation list file \"{file}\" or directory \"{directory}\": {reason}"
            ),
        }
    })
}

/// Does what be_tls_get_certificate_hash does: uses the hash of the certificate's signature,
/// but SHA-256 in place of MD5 and SHA-1. None if the signature has no such hash.
fn certificate_hash(certificate: &X509Ref) -> Option<Vec<u8>> {
    let digest = match signature_digest(certificate)? {
        Nid::MD5 | Nid::SHA1 => MessageDigest::sha256(),
        other => MessageDigest::from_nid(other)?,
    };
    Some(certificate.digest(digest).ok()?.to_vec())
}

// ---- Parameters -----------------------------------------------------------
//
// The server's parameters about TLS, under their names in the server and as text.

/// The values of postgresql.conf. Relative paths start from the data directory, which is the
/// working directory of this program as of the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub is_on: bool,
    pub cert_file: String,
    pub key_file: String,
    pub ca_file: String,
    pub crl_file: String,
    pub crl_dir: String,
    pub dh_params_file: String,
    pub ciphers: String,
    /// For 18 and later; "": OpenSSL's default.
    pub tls13_ciphers: String,
    /// ssl_ecdh_curve before 18.
    pub groups: String,
    pub prefer_server_ciphers: bool,
    pub min_protocol_version: String,
    pub max_protocol_version: String,
    pub passphrase_command: String,
    pub passphrase_command_supports_reload: bool,
}

impl Settings {
    /// Sets one by the server's name for it; false if it is not one of these.
    pub fn set(&mut self, name: &str, value: &str) -> bool {
        let text = match name {
            "ssl" => return set_flag(&mut self.is_on, value),
            "ssl_prefer_server_ciphers" => {
                return set_flag(&mut self.prefer_server_ciphers, value);
            }
            "ssl_passphrase_command_supports_reload" => {
                return set_flag(&mut self.passphrase_command_supports_reload, value);
            }
            "ssl_cert_file" => &mut self.cert_file,
            "ssl_key_file" => &mut self.key_file,
            "ssl_ca_file" => &mut self.ca_file,
            "ssl_crl_file" => &mut self.crl_file,
            "ssl_crl_dir" => &mut self.crl_dir,
            "ssl_dh_params_file" => &mut self.dh_params_file,
            "ssl_ciphers" => &mut self.ciphers,
            "ssl_tls13_ciphers" => &mut self.tls13_ciphers,
            "ssl_ecdh_curve" | "ssl_groups" => &mut self.groups,
            "ssl_min_protocol_version" => &mut self.min_protocol_version,
            "ssl_max_protocol_version" => &mut self.max_protocol_version,
            "ssl_passphrase_command" => &mut self.passphrase_command,
            _ => return false,
        };
        value.clone_into(text);
        true
    }

    /// All of them, for [`Settings::set`] of another process.
    pub fn all(&self) -> [(&'static str, &str); 15] {
        let flag = |flag| if flag { "on" } else { "off" };
        [
            ("ssl", flag(self.is_on)),
            (
                "ssl_prefer_server_ciphers",
                flag(self.prefer_server_ciphers),
            ),
            (
                "ssl_passphrase_command_supports_reload",
                flag(self.passphrase_command_supports_reload),
            ),
            ("ssl_cert_file", &self.cert_file),
            ("ssl_key_file", &self.key_file),
            ("ssl_ca_file", &self.ca_file),
            ("ssl_crl_file", &self.crl_file),
            ("ssl_crl_dir", &self.crl_dir),
            ("ssl_dh_params_file", &self.dh_params_file),
            ("ssl_ciphers", &self.ciphers),
            ("ssl_tls13_ciphers", &self.tls13_ciphers),
            ("ssl_groups", &self.groups),
            ("ssl_min_protocol_version", &self.min_protocol_version),
            ("ssl_max_protocol_version", &self.max_protocol_version),
            ("ssl_passphrase_command", &self.passphrase_command),
        ]
    }
}

fn set_flag(flag: &mut bool, value: &str) -> bool {
    *flag = value == "on";
    true
}

// ---- Key file -------------------------------------------------------------
//
// Checks which users can read the private key's file, as check_ssl_key_file_permissions
// (be-secure-common.c) does. Blocks; called at the start, and at a reload from a thread of its
// own.

/// The text that %m gives in the server's messages: without the number.
pub fn error_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Refuses a file that other users can read, as the server does.
pub fn check_key_permissions(path: &str) -> Result<(), String> {
    let about = std::fs::metadata(path).map_err(|error| {
        let error = error_text(&error);
        format!("could not access private key file \"{path}\": {error}")
    })?;
    judge(
        path,
        about.is_file(),
        about.uid(),
        about.mode(),
        process::own_uid(),
    )
}

/// The rule alone, without access to the file.
fn judge(path: &str, is_file: bool, owner: u32, mode: u32, own: u32) -> Result<(), String> {
    if !is_file {
        return Err(format!("private key file \"{path}\" is not a regular file"));
    }
    if owner != own && owner != 0 {
        return Err(format!(
            "private key file \"{path}\" must be owned by the database user or root"
        ));
    }
    if (owner == own && mode & 0o077 != 0) || (owner == 0 && mode & 0o037 != 0) {
        return Err(format!(
            "private key file \"{path}\" has group or world access"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_servers_names() {
        let mut settings = Settings::default();
        assert!(settings.set("ssl", "on") && settings.is_on);
        assert!(settings.set("ssl_cert_file", "server.crt"));
        assert!(settings.set("ssl_groups", "X25519"));
        assert_eq!(settings.cert_file, "server.crt");
        assert_eq!(settings.groups, "X25519");
        assert!(!settings.set("port", "1"));
    }

    #[test]
    fn a_key_that_others_may_read_is_refused_as_the_server_does() {
        let judged = |owner, mode| judge("k", true, owner, mode, 100).is_ok();
        assert!(judged(100, 0o100_600) && judged(100, 0o100_400));
        assert!(!judged(100, 0o100_640) && !judged(100, 0o100_604));
        assert!(judged(0, 0o100_640) && !judged(0, 0o100_660) && !judged(0, 0o100_644));
        assert!(!judged(7, 0o100_600));
        assert!(judge("k", false, 100, 0o600, 100).is_err());
    }
}
