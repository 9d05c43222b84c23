//! The server's parameters about TLS, with their names there and as text.

/// As postgresql.conf has them; relative paths start from the data directory,
/// which is the working directory of this program as of the server.
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
    /// 18 and later; "": OpenSSL's own.
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
    /// Sets one by the server's name for it; false if it is none of these.
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
}

fn set_flag(flag: &mut bool, value: &str) -> bool {
    *flag = value == "on";
    true
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
}
