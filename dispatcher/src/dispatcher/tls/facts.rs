//! What a handshake has shown of a session.

use openssl::ssl::SslRef;

/// For the log, for pg_hba.conf, and for pg_stat_ssl.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// As SSL_get_version names it.
    pub protocol: String,
    pub cipher: String,
    pub bits: i32,
    /// The client has chosen our protocol by ALPN.
    pub has_alpn: bool,
}

impl Facts {
    pub fn of(ssl: &SslRef) -> Result<Facts, String> {
        let cipher = ssl.current_cipher();
        Ok(Facts {
            protocol: ssl.version_str().to_owned(),
            cipher: cipher.map_or("", |cipher| cipher.name()).to_owned(),
            bits: cipher.map_or(0, |cipher| cipher.bits().secret),
            has_alpn: ssl.selected_alpn_protocol().is_some(),
        })
    }

    /// What stock adds to "connection authorized" (postinit.c).
    pub fn for_log(&self) -> String {
        format!(
            " SSL enabled (protocol={}, cipher={}, bits={})",
            self.protocol, self.cipher, self.bits
        )
    }
}
